"""What MkDocs does beyond its plugins: the page of examples shows its scripts, and links in notebooks lead to pages."""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

EXAMPLES = "examples/index.md"
LINK = re.compile(r'href="([^":#]+\.(?:md|ipynb))(#[^"]*)?"')
log = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Put the text of every script under the page of examples, each under its name."""
    if page.file.src_uri != EXAMPLES:
        return markdown
    scripts = sorted((Path(config["docs_dir"]) / EXAMPLES).parent.glob("*.py"))
    return "\n\n".join([markdown, *(f"## {path.name}\n\n```python\n{path.read_text()}```" for path in scripts)])


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """Let a notebook's links to sources, as GitHub needs them, lead to the pages made of them."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def page_of(link: re.Match) -> str:
        target = files.get_file_from_path(posixpath.normpath(posixpath.join(page.file.src_uri, "..", link[1])))
        if target is None:
            log.warning("%s links to %s, which is not there", page.file.src_uri, link[1])  # an error with --strict
            return link[0]
        return f'href="{target.url_relative_to(page.file)}{link[2] or ""}"'

    return LINK.sub(page_of, html)
