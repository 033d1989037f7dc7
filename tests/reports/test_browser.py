"""The page in headless Chromium: curves, legend, hover, keyboard, width. Skipped where no Chromium is installed."""

import pytest

from mrfquant.reports.groups import DEFAULT_BY, group_runs
from mrfquant.reports.page import page
from mrfquant.reports.runs import read_run

HOSTILE = "</script><script>alert(1)</script><img/src=x/onerror=alert(2)>"


@pytest.fixture
def report(make_run, told, tmp_path):
    """A page of two groups, PMF of two seeds and BC, and of one with a hostile name that is unfinished."""
    made = [make_run("a", 97.0), make_run("b", 98.0, seed=1), make_run("c", 80.0, method="BC", seed=3)]
    metrics = (made[2] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (made[2] / "metrics.jsonl").write_text("".join(metrics[:1] + metrics[2:]))  # nothing at iteration 200
    made.append(make_run(HOSTILE.replace("/", ""), None, method=HOSTILE))
    path = tmp_path / "report.html"
    path.write_text(page(group_runs([read_run(folder, told.append) for folder in made]), DEFAULT_BY, [HOSTILE]))
    return path


@pytest.fixture
def opened(browser, report):
    """The browser with the page open; afterwards: it fetched nothing but itself and found no fault."""
    browser.open(report)
    yield browser
    assert [e["request"]["url"] for e in browser.seen("Network.requestWillBeSent")] == [report.as_uri()]
    assert browser.seen("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    assert browser.seen("Page.javascriptDialogOpening") == []


def curves(group, panel=1):
    """A selector for the curves of a group in a panel."""
    return f".panel:nth-child({panel}) .plot > .curve[data-group='{group}']"


def test_every_panel_draws_every_group(opened):
    assert opened.js("document.querySelectorAll('.panel').length") == 5
    for panel in range(1, 6):
        for group in range(3):
            length = f'document.querySelector("{curves(group, panel)} path:not(.band)").getTotalLength()'
            assert opened.js(length) > 100
    assert opened.js(f'document.querySelectorAll("{curves(0)}").length') == 2  # rounded and relaxed
    assert opened.js(f'document.querySelectorAll("{curves(0)} .band").length') == 1
    assert opened.js(f'document.querySelectorAll("{curves(1)} .band").length') == 0  # a single seed


def test_the_legend_hides_and_shows_a_group_in_all_panels(opened):
    count = "document.querySelectorAll(\".plot > .curve[data-group='1']\").length"
    pressed = "document.querySelector('.legend button[data-group=\"1\"]').getAttribute('aria-pressed')"
    assert (opened.js(count), opened.js(pressed)) == (6, "true")
    opened.click(".legend button[data-group='1']")
    assert (opened.js(count), opened.js(pressed)) == (0, "false")
    assert opened.js("document.querySelectorAll(\".plot > .curve[data-group='0']\").length") == 6
    opened.click(".legend button[data-group='1']")
    assert (opened.js(count), opened.js(pressed)) == (6, "true")


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_legend_answers_the_keyboard(opened, key):
    opened.js("document.querySelector('.legend button').focus()")
    opened.press(key)
    assert opened.js("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    assert opened.js(f'document.querySelectorAll("{curves(0)}").length') == 0


def test_all_groups_can_be_hidden_and_shown_at_once(opened):
    count = "document.querySelectorAll('.plot > .curve').length"
    before = opened.js(count)
    opened.click(".legend .all")
    assert opened.js(count) == 0
    opened.move(".panel .plot")  # nothing to tell, nothing to fail
    opened.click(".legend .all")
    assert opened.js(count) == before


def test_hovering_tells_the_values_of_the_visible_groups(opened):
    values = "document.querySelector('.panel .values').innerText"
    opened.click(".legend button[data-group='2']")
    opened.move(".panel:nth-child(1) .plot", across=0.52)  # near iteration 200 of 400
    told = opened.js(values)
    assert "iteration 200" in told
    assert "PMF\t85.50\t85.00 – 86.00\trelaxed 86.50" in told  # noqa: RUF001
    assert "BC\t88.00" in told  # between its records at 100 and 300
    assert len(told.splitlines()) == 3
    assert opened.js("document.querySelectorAll('.cross').length") == 5
    opened.move("h1")
    assert opened.js("document.querySelector('.panel .values').childElementCount") == 0
    assert opened.js("document.querySelectorAll('.cross').length") == 0


def test_the_arrow_keys_tell_the_values(opened):
    opened.js("document.querySelector('.panel .plot').focus()")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert "iteration 200" in opened.js("document.querySelector('.panel .values').innerText")


def test_scales_switch_between_log_and_linear(opened):
    path = f"document.querySelector(\"{curves(0, 2)} path:not(.band)\").getAttribute('d')"
    log = opened.js(path)
    opened.click(".panel:nth-child(2) button")
    linear = opened.js(path)
    opened.click(".panel:nth-child(2) button")
    assert linear != log
    assert opened.js(path) == log


@pytest.mark.parametrize("width", [375, 800])
def test_a_narrow_window_does_not_scroll_sideways(opened, report, width):
    opened.open(report, width=width)
    opened.move(".panel .plot")
    assert opened.js("document.querySelector('.panel .values').childElementCount") == 1
    assert opened.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert opened.js("document.documentElement.clientWidth") <= width


def test_dark_and_light_differ(opened, report):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opened.js(ground)
    opened.open(report, dark=True)
    assert opened.js(ground) != light


def test_runs_that_recorded_nothing_make_a_page(browser, make_run, told, tmp_path):
    run = read_run(make_run("new", None, records=[]), told.append)
    (tmp_path / "empty.html").write_text(page(group_runs([run]), DEFAULT_BY))
    browser.open(tmp_path / "empty.html")
    assert "Nothing was recorded yet." in browser.js("document.body.innerText")
    assert browser.seen("Runtime.exceptionThrown", "Log.entryAdded") == []


def test_a_hostile_name_is_shown_and_does_nothing(opened):
    assert HOSTILE in opened.js("document.body.innerText")
    assert opened.js("document.querySelectorAll('img').length") == 0
    assert opened.js("document.scripts.length") == 2
