"""Report of a run: complete, and its page is self-contained."""

import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from node.api.contributors import ContributorsPage
from simulations.metrics.numbers import RunMeter
from simulations.report.page import CAPTIONS, _percent, write_report
from simulations.report.plots import CALM, FAULT, PICTURES, draw_all
from tests.browser.states import HOSTILE, STATES
from tests.simulations.trace_examples import small_run

PNG = b"\x89PNG\r\n\x1a\n"
COMMAND = "prime-node simulate run 'a b' --seed 3"


def story(*, broken=False):
    """Make a run that shows every feature of the plots; return its result and series."""
    run = small_run()
    meter = RunMeter(run.watch, run.checkers, 0.1)
    manifest = run.genesis
    for version in range(1, 12):
        run.wait(2)
        run.emit("relay", "gossip-published", topic="commits", id=f"m{version}")
        for node in ("trainer", "worker-0", "liar", "validator-0", "validator-1", "validator-2"):
            run.now += 0.05
            run.emit(node, "gossip-first", topic="commits", id=f"m{version}")
            run.emit(node, "sample", members=6 + version % 2)
        place = {"version": version - 1, "checkpoint": run.digest(manifest), "slot": version - 1}
        commit = run.certified("worker-0", **place)
        manifest = run.published(version, manifest, [commit])
        for node in ("relay", "worker-0", "validator-0", "validator-1", "validator-2"):
            run.now += 0.8
            run.emit(node, "weights", version=version, seconds=0.8, bytes=4_000_000)
        if version == 4:
            run.emit("world", "fault", what="partition <1|2>")
    run.emit("world", "calm")
    run.wait(20)
    if broken:
        run.certified("liar")
    run.watch.finish(run.now)
    result = meter.result(
        {"scenario": "a <scenario>", "seed": 3},
        nodes=7,
        wall_s=1.5,
        events=99,
        trace_digest="d1",
        peak_rss_mb=80,
    )
    return result, meter.series


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


def test_a_report_has_numbers_pictures_and_one_page(tmp_path):
    result, series = story()
    page = write_report(tmp_path / "new" / "report", result, series, COMMAND)
    folder = page.parent
    assert json.loads((folder / "result.json").read_text()) == json.loads(
        json.dumps(result.to_json())
    )
    assert len(json.loads((folder / "series.json").read_text())["versions"]) == 11
    for name in PICTURES:
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
    parsed = Page(page.read_text())
    assert "script" not in parsed.tags
    assert parsed.tags.count("img") == len(PICTURES)
    assert all(link.startswith("data:image/png;base64,") for link in parsed.links)
    text = " ".join(parsed.text)
    assert "All checks passed" in text
    assert COMMAND in text
    assert "a <scenario>, seed 3" in text
    assert "partition <1|2>" in text


def test_a_violation_stands_on_the_page_with_its_causes():
    from simulations.report.page import render_page  # noqa: PLC0415 - beside what it is about

    result, series = story(broken=True)
    text = render_page(result, series, {}, COMMAND)
    assert "no-false-rollout-certified" in text
    assert "stored certificate" in text
    assert "All checks passed" not in text


def contributors_on(page):
    from simulations.report.page import render_page  # noqa: PLC0415 - beside what it is about

    result, series = story()
    return render_page(result, series, {}, COMMAND, page)


def test_contributors_are_on_the_page_with_the_recorded_node_marked():
    known = STATES["ready"]().contributors
    text = contributors_on(known)
    (row,) = re.findall(r'<tr class="own">.*?</tr>', text)
    assert "recorded node" in row and row.startswith('<tr class="own"><td>14. <bdi>שרה</bdi> ')
    assert re.findall(r">([^<]+)</td>", row)[1:] == [
        *("1.1 M", "774", "0", "0", "1.0 %", "7.14 M", "88.2 k", "epoch 42")
    ]
    (slashed,) = re.findall(r'<tr class="slashed">.*?</tr>', text)
    assert "slashed at epoch 211" in slashed
    assert text.count('data-title="tokens"') == 14
    assert "14 contributors, 1 slashed" in text and "more</p>" not in text
    assert "<h2>Contributors</h2>" not in contributors_on(None)
    assert "<h2>Contributors</h2>" not in contributors_on(ContributorsPage())


def test_of_many_contributors_the_first_hundred_and_the_recorded_node_are_on_the_page():
    text = contributors_on(STATES["peers-1000"]().contributors)
    assert text.count('data-title="tokens"') == 101
    assert '<tr class="own"><td>1000. ' in text
    assert '<p class="sub">and 899 more</p>' in text


def test_names_of_contributors_stay_text():
    known = STATES["ready"]().contributors
    rows = tuple(replace(known.rows[0], name=word, peer_id=word[:60]) for word in HOSTILE)
    parsed = Page(contributors_on(replace(known, rows=rows)))
    assert not {"script", "img", "svg", "iframe"} & set(parsed.tags)
    assert parsed.tags.count("h1") == 1 and parsed.tags.count("style") == 1
    text = "".join(parsed.text)
    assert HOSTILE[0] in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)


def test_pictures_of_a_run_that_hardly_began():
    run = small_run()
    meter = RunMeter(run.watch, run.checkers, 0.1)
    assert all(png.startswith(PNG) for png in draw_all(meter.series).values())


def test_equal_runs_give_equal_pictures():
    assert draw_all(story()[1]) == draw_all(story()[1])


def test_every_picture_has_a_caption():
    assert list(CAPTIONS) == list(PICTURES)


def test_the_page_asks_nobody_for_anything():
    from simulations.report.page import render_page  # noqa: PLC0415 - beside what it is about

    result, series = story()
    page = render_page(result, series, draw_all(series), COMMAND)
    text = re.sub(r"data:image/png;base64,[^\"]*", "", page)
    assert [word for word in ("http:", "https:", "@import", "url(") if word in text] == []


@pytest.mark.parametrize("name", ["progress", "members"])
def test_what_was_done_to_the_swarm_is_seen_from_top_to_bottom(name):
    image = pytest.importorskip("matplotlib.image")
    _, series = story()
    assert [what for _, what in series.marks] == ["partition <1|2>", "calm"]
    picture = image.imread(io.BytesIO(draw_all(series)[name]))[:, :, :3]
    for colour in (FAULT, CALM):
        wanted = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        near = abs(picture - wanted).max(axis=2) < 0.1
        assert near.any(axis=1).mean() > 0.4, "a dashed line has gaps, and the axes margins"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "none"),
        (0.0, "0.0%"),
        (1.0, "100.0%"),
        (0.5, "50.0%"),
        (0.9996, "99.96%"),
        (0.99999, "99.999%"),
        (0.0004, "0.04%"),
        (1 - 1e-12, "100.00000000%"),
    ],
)
def test_nearly_all_is_not_shown_as_all(value, told):
    assert _percent(value) == told


def test_the_page_fits_a_phone(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's package chromium")
    result, series = story(broken=True)
    known = STATES["ready"]().contributors
    command = COMMAND + " --nodes 1000" * 8
    page_file = write_report(tmp_path, result, series, command, known)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (320, 390, 768, 1280):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.goto(page_file.as_uri())
            wide = page.evaluate(
                """() => [...document.querySelectorAll('body *')]
                    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
                    .map(e => e.tagName + '.' + e.className)"""
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert [one for one in wide if not one.startswith("PRE")] == [], width
            small = page.evaluate(
                """() => [...document.querySelectorAll('img')].map(e => e.clientWidth)"""
            )
            assert min(small) > 0.6 * min(width, 460), width
            page.close()
        browser.close()
