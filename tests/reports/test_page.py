"""The page: one file, its data whole, and nothing that a run is called can get out of its place."""

import json
import re
from html.parser import HTMLParser

import pytest

from mrfquant.reports.groups import DEFAULT_BY, group_runs
from mrfquant.reports.page import embedded, page
from mrfquant.reports.runs import read_run

HOSTILE = "</script><script>alert(1)</script>"


class Elements(HTMLParser):
    """Collects the elements of a page: (name, attributes), and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


@pytest.fixture
def page_of(make_run, told):
    """The page of runs, each given as the arguments of make_run."""

    def page_of(*runs, by=DEFAULT_BY, notes=()):
        folders = [make_run(f"run{i}", **run) for i, run in enumerate(runs)]
        return page(group_runs([read_run(folder, told.append) for folder in folders], by), by, notes)

    return page_of


def test_the_data_are_the_curves(page_of):
    text = page_of({"top1": 98.0}, {"top1": 98.0, "seed": 2}, {"method": "BC"})
    data = json.loads(Elements(text).scripts[0])
    assert [group["label"] for group in data["groups"]] == ["PMF", "BC"]
    assert [panel["title"].split()[0] for panel in data["panels"]] == [
        "validation", "training", "beta", "entropy,", "flips,"
    ]  # fmt: skip
    curve = data["panels"][0]["curves"][0]
    assert (curve["group"], curve["thin"], curve["x"]) == (0, False, [100, 200, 300, 400])
    assert (curve["low"], curve["mean"], curve["high"]) == (
        [82.5, 85, 87.5, 90],
        [83.5, 86, 88.5, 91],
        [84.5, 87, 89.5, 92],
    )


def test_nothing_is_fetched(page_of):
    elements = Elements(page_of({}))
    assert {tag for tag, _ in elements.found} & {"img", "iframe", "object", "embed", "audio", "video"} == set()
    assert [a.get("href") for tag, a in elements.found if tag == "link"] == ["data:,"]
    assert all("src" not in attributes for _, attributes in elements.found)
    assert "url(" not in page_of({"seed": 1}, by=["seed"])


def test_hostile_names_stay_text_everywhere(page_of, make_run, told):
    hostile = {"method": HOSTILE, "model": '" onmouseover="alert(1)', "dataset": "<img src=x onerror=alert(1)>"}
    text = page_of({}, {**hostile, "rho": HOSTILE}, {**hostile, "top1": None}, notes=[HOSTILE])
    elements = Elements(text)
    assert len(elements.scripts) == 2
    assert "alert(1)</script>" not in text
    assert not any(tag == "img" for tag, _ in elements.found)
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    labels = [group["label"] for group in json.loads(elements.scripts[0])["groups"]]
    assert any(HOSTILE in label for label in labels)


def test_embedded_json_reads_back_and_has_no_markup():
    value = {"name": HOSTILE + "<!--\u2028&amp;", "numbers": [1.5, None]}
    assert json.loads(embedded(value)) == value
    assert not set("<>&\u2028") & set(embedded(value))


def test_the_policy_allows_our_script_alone(page_of):
    text = page_of({})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'$", policy)


def test_tables_notes_and_unfinished_runs_are_on_the_page(page_of):
    text = page_of({"top1": 97.0}, {"top1": 98.0, "seed": 1}, {"top1": None, "seed": 2, "rho": 9}, notes=["mind this"])
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"97\.50\s+± 0\.71", plain)
    assert "Geometric. rho" in plain
    assert "1.2, 9" in plain
    assert "run2 is at iteration 400 of 400" in plain
    assert "mind this" in plain


def test_equal_runs_say_that_nothing_differs(page_of):
    assert "differ in nothing but their seeds" in page_of({}, {"seed": 1})
