"""The site: every public name is in the reference, and it builds without a warning and without the network."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mrfquant
import mrfquant.testing

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^::: (mrfquant[\w.]*)\.(\w+)$", flags=re.MULTILINE)
ENTRIES = [found for page in sorted((DOCS / "reference").glob("*.md")) for found in ENTRY.findall(page.read_text())]
PUBLIC = [*mrfquant.__all__, *mrfquant.testing.__all__]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference_once(name):
    assert Counter(name for _, name in ENTRIES)[name] == 1


@pytest.mark.parametrize(("module", "name"), ENTRIES)
def test_the_reference_names_what_is_there(module, name):
    owner = importlib.import_module(module)
    named = getattr(owner, name)
    assert name not in mrfquant.__all__ or named is getattr(mrfquant, name)


def test_every_page_is_one_of_the_site_and_of_its_overview():
    """Without MkDocs, so that it holds where that is not installed."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    overview = (DOCS / "reference" / "index.md").read_text()
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        assert f": {path.relative_to(DOCS).as_posix()}\n" in navigation, path
        assert path.parent.name != "reference" or path.name == "index.md" or f"({path.name})" in overview, path


def test_docstrings_of_public_names_list_one_name_a_line(caplog):
    """What follows another name in its line would be part of that one's text."""
    griffe = pytest.importorskip("griffe", reason="needs the docs extra")
    package = griffe.load("mrfquant", search_paths=[ROOT], docstring_parser="google", resolve_aliases=True)
    wrong = []
    for module, name in ENTRIES:
        top = package[f"{module}.{name}".removeprefix("mrfquant.")]
        members = top.members.values() if top.is_class else ()
        for part in [top, *(m for m in members if not m.name.startswith("_"))]:
            for section in part.docstring.parsed if part.docstring else ():
                if section.kind.value in ("parameters", "attributes"):
                    found = [item for item in section.value if re.search(r"\. [a-z_, ]+: ", item.description)]
                    wrong += [f"{part.path}: {item.name}: {item.description}" for item in found]
    assert not wrong
    assert not [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; the machine's own network is out of reach while it is built."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs MkDocs: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder / "site"


NO_NETWORK = """
import socket

def refuse(*_, **__):
    raise OSError("the site is built without the network")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""


def test_the_site_builds(site):
    for name in ("index.html", "mathematics.html", "examples/index.html", "examples/paper_walk.html"):
        assert (site / name).stat().st_size > 5000, name


def test_names_are_shown_as_what_they_are(site):
    """Not as the module of the same name; with a docstring."""
    for page in (site / "reference").glob("*.html"):
        assert "doc-module" not in page.read_text(), page.name
    solvers = (site / "reference" / "solvers.html").read_text()
    assert 'id="mrfquant.ProximalMeanField"' in solvers
    assert "Algorithm 1, Theorem 3.1" in solvers


def test_links_between_pages_lead_somewhere(site):
    """Those in notebooks, too, which MkDocs does not check."""
    checked = 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue  # its links start from the root of the site
        for link in re.findall(r'<a [^>]*href="([^":#?]+)["#?]', page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(site)} links to {link}"
            checked += 1
    assert checked > 500


def test_pages_load_nothing_from_elsewhere(site):
    """Links may lead away; scripts, styles, fonts and pictures come with the site."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"'](https?:|//)", text)
        loaded += re.findall(r"<link[^>]+href=[\"'](?:https?:|//)[^>]+", text)
        assert not loaded, page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style
