"""Pages in a real browser, on recorded nodes."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from node.api.v1.recording import Recording
from tests.browser.conftest import Served
from tests.browser.states import HOSTILE, STATES, ready

expect = pytest.importorskip("playwright.sync_api", reason="pip install '.[dev]'").expect

pytestmark = pytest.mark.slow

PAGES = ["", "training", "rollouts", "contributors", "peers", "weights", "events", "node", "run"]
HEADINGS = {
    "rollouts": "Rollouts",
    "contributors": "Contributors",
    "peers": "Peers",
    "weights": "Weights",
    "events": "Events",
    "node": "This node",
}
LOOKED_AT_BY_AXE = ["ready", "stuck", "joining", "slashed", "peers-1000"]
FETCHES_MAX = 30
FETCHED_BYTES_MAX = 400_000
SETTLE_MILLISECONDS = 250
"""Time for a page's requests after its heading has appeared."""

PATIENCE_SECONDS = 30.0


def commit_of(state, number=0):
    return STATES[state]().rollouts[number].row.commit


def addresses(state):
    yield from (f"#/{name}" for name in PAGES)
    if STATES[state]().rollouts:
        yield f"#/rollouts/{commit_of(state)}"


def until(holds, page):
    """Wait until ``holds`` is true; the page's policy forbids ``wait_for_function``."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < ends_at
        page.wait_for_timeout(50)


def go(watched, url, address):
    """Open a page and wait until its requests are drawn."""
    page = watched.page
    page.goto(f"{url}{address}")
    page.locator("main h1").wait_for()
    page.wait_for_timeout(SETTLE_MILLISECONDS)


FIGURES_CUT = """[...document.querySelectorAll('.figures dd')].filter((one) => {
    const cell = one.parentElement, room = parseFloat(getComputedStyle(cell).paddingRight);
    return one.getBoundingClientRect().right > cell.getBoundingClientRect().right - room + 0.5;
}).map((one) => one.textContent)"""
"""Figures wider than their cells less the padding."""

LABELS_TOUCH = """[...document.querySelectorAll('svg')].flatMap((drawing) => {
    const labels = [...drawing.querySelectorAll('.tick[text-anchor=middle]')]
        .map((one) => ({text: one.textContent, box: one.getBoundingClientRect()}));
    return labels.slice(1).filter((one, at) => one.box.left < labels[at].box.right + 4)
        .map((one) => one.text);
})"""
"""Labels of a chart that touch their predecessor."""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
@pytest.mark.parametrize("state", STATES)
def test_every_page_of_every_state_is_quiet_and_fits(recorded, open_page, state, width, scheme):
    """Axe, which takes seconds a page, finds no violations either."""
    import axe_playwright_python  # noqa: PLC0415 - only where a browser is

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    url = recorded(state)
    watched = open_page(url, width, scheme)
    for address in addresses(state):
        go(watched, url, address)
        page = watched.page
        assert page.locator("h1").count() == 1, address
        assert page.locator(".trouble").count() == 0, address
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{address} is {wide} pixels too wide at {width}"
        assert page.evaluate(FIGURES_CUT) == [], f"{address} at {width}"
        assert page.evaluate(LABELS_TOUCH) == [], f"{address} at {width}"
        found = run_axe(page, axe) if state in LOOKED_AT_BY_AXE else ()
        told = [f"{one['id']}: {[node['html'][:90] for node in one['nodes']][:3]}" for one in found]
        assert told == [], f"{address} at {width}, {scheme}"
    watched.check(url)


def run_axe(page, axe):
    """Return the violations; runs in an isolated world without the page's policy."""
    session = page.context.new_cdp_session(page)
    frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})[
        "executionContextId"
    ]
    session.send("Runtime.evaluate", {"expression": axe, "contextId": world})
    answer = session.send(
        "Runtime.evaluate",
        {
            "expression": "axe.run(document, {resultTypes: ['violations']})"
            ".then((found) => found.violations)",
            "contextId": world,
            "awaitPromise": True,
            "returnByValue": True,
        },
    )
    assert "exceptionDetails" not in answer, answer
    session.detach()
    return answer["result"]["value"]


def test_a_trainer_shows_every_statistic_and_a_step_without_effect(recorded, open_page):
    url = recorded("stuck")
    watched = open_page(f"{url}#/training", settled="figure svg")
    page = watched.page
    assert page.locator("figure svg").count() == page.locator("section").count() == 19
    expect(page.locator(".warning").first).to_contain_text("step 42 used 0 of 64 sequences")
    go(watched, url, "#/")
    expect(page.locator(".warning").first).to_contain_text("step 42 used 0 of 64 sequences")
    watched.check(url)


def test_the_trainers_of_a_version_are_named(recorded, open_page):
    watched = open_page(f"{recorded('ready')}#/weights", settled="table")
    publishers = watched.page.locator("td .note.whole")
    expect(publishers.nth(0)).to_have_text(" term 0")
    expect(publishers.nth(1)).to_contain_text(" with ")
    expect(publishers.nth(1).locator("a")).to_have_count(1)
    expect(publishers.nth(2)).to_have_text(" term 0")


def test_a_node_that_does_not_train_shows_the_reward_alone(recorded, open_page):
    watched = open_page(f"{recorded('ready')}#/training", settled="figure svg")
    assert watched.page.locator("figure svg").count() == 1
    assert watched.page.locator(".warning").count() == 0
    expect(watched.page.locator(".sub")).to_contain_text("This node trained no version")


def test_what_others_wrote_stays_text(recorded, open_page):
    url = recorded("hostile")
    watched = open_page(url)
    for address in addresses("hostile"):
        go(watched, url, address)
        page = watched.page
        assert page.evaluate("window.pwned") is None, address
        assert page.locator("main script, main style, main img, main iframe").count() == 0
        assert page.locator("h1").count() == 1, "a heading came in with somebody's text"
        links = page.locator("a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
        assert all(link.startswith("#") for link in links), links
    for address in ("#/run", "#/contributors", "#/peers"):
        watched.page.goto(f"{url}{address}")
        watched.page.get_by_text(HOSTILE[0], exact=True).first.wait_for()
        text = watched.page.locator("main").inner_text()
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    watched.check(url)


def test_a_page_cannot_be_made_to_run_what_it_is_given(recorded, open_page):
    watched = open_page(recorded("ready"))
    with pytest.raises(Exception, match="TrustedHTML"):
        watched.page.evaluate("document.body.innerHTML = '<b>x</b>'")
    watched.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {}))"
    )
    assert watched.page.evaluate("window.pwned") is None


def test_evaluated_versions_are_a_line_with_a_band_beside_the_training_reward(recorded, open_page):
    page = open_page(recorded("ready")).page
    chart = page.locator("figure.chart").first
    chart.locator("path.band.warn").wait_for()
    line = chart.locator("path.series.warn").get_attribute("d")
    assert line.count("M") == 1, "the line goes on over versions that are not evaluated"
    assert line.count("L") > 3
    assert "held-out problems from" in chart.locator("svg").get_attribute("aria-label")
    page = open_page(recorded("joining")).page
    assert page.locator("path.band").count() == 0


@pytest.mark.parametrize("state", ["ready", "peers-1000", "versions-10000"])
def test_what_is_fetched_before_the_first_paint_is_bounded(recorded, open_page, state):
    """The bound does not depend on the size of the swarm."""
    for address in ("", "#/peers"):
        watched = open_page(f"{recorded(state)}{address}", settled="main h1")
        sizes = "performance.getEntriesByType('resource').map((one) => one.transferSize)"
        fetched = watched.page.evaluate(sizes)
        assert len(fetched) <= FETCHES_MAX
        assert 10_000 < sum(fetched) <= FETCHED_BYTES_MAX


def test_a_thousand_peers_come_page_by_page(recorded, open_page):
    watched = open_page(f"{recorded('peers-1000')}#/peers", settled="tbody tr")
    page = watched.page
    assert page.locator("tbody tr").count() == 100
    first = page.locator("tbody tr a").first.get_attribute("title")
    page.get_by_text("Next").click()
    page.get_by_text("101 to 200 of 1,000").wait_for()
    assert page.locator("tbody tr a").first.get_attribute("title") != first
    page.get_by_label("Search").fill("203.0.113.77/")
    expect(page.locator("tbody tr")).to_have_count(4)


def test_rollouts_are_filtered_and_lead_to_what_was_said(recorded, open_page):
    watched = open_page(f"{recorded('ready')}#/rollouts", settled="tbody tr")
    page = watched.page
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("link", name="Older").click()
    until(lambda: "after=" in page.url, page)
    page.get_by_role("button", name="rejected").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Reason").select_option("reward")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Stages").wait_for()
    assert page.locator(".way li.reached").count() == 4, "a rejected rollout is never trained on"
    assert page.locator(".gauge.bad").count() > 0
    assert page.get_by_text("claimed 1, recomputed 0").count() == 3
    assert page.locator(".prompt").count() == 2 and page.locator(".completions li").count() == 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contributors_are_ranked_with_this_node_marked_also_on_a_telephone(
    recorded, open_page, scheme
):
    url = recorded("ready")
    watched = open_page(f"{url}#/contributors", 360, scheme, settled="tbody tr")
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator("tbody tr")).to_have_count(14)
    (own,) = page.locator("tr.marked").all()
    for told in ("14.", "שרה", "this node", "1.0 %", "774", "epoch 42"):
        expect(own).to_contain_text(told)
    colours = page.locator("tbody tr").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len({*colours[:13]}) == 1 and colours[13] != colours[0]
    expect(page.locator("tr", has_text="slashed")).to_have_count(1)
    figures = page.locator(".figures > div").all_inner_texts()
    told = [" ".join(one.split()) for one in figures]
    assert told[2] == "Share of the run 1.0 % of the credit; rank 14 of 14"
    assert told[5] == "Rejected 2 computation 1, reward 1"
    go(watched, url, "#/")
    expect(page.locator(".head .note")).to_have_text(
        "This node: 774 certified, 1.1 M tokens, 1.0 % of the run, rank 14 of 14; "
        "12 waiting, 2 rejected"
    )
    watched.check(url)


def test_of_many_contributors_the_first_hundred_and_this_node_are_shown(recorded, open_page):
    page = open_page(f"{recorded('peers-1000')}#/contributors", settled="tbody tr").page
    assert page.locator("tbody tr").count() == 101
    assert page.locator("tr.marked").all_inner_texts() == [
        page.locator("tbody tr").last.inner_text()
    ]
    expect(page.locator("tr.marked")).to_contain_text("1,000.")
    expect(page.get_by_text("and 899 more")).to_be_visible()


def test_a_name_stands_beside_its_key_and_turns_no_text_around(recorded, open_page):
    watched = open_page(f"{recorded('ready')}#/peers", settled="tbody tr")
    page = watched.page
    for address in ("#/peers", "#/contributors"):
        go(watched, recorded("ready"), address)
        peer = page.locator(".peer", has_text="שרה").first
        boxes = peer.locator("bdi").bounding_box(), peer.locator("a").bounding_box()
        assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"], "the key is on its right"
    page.get_by_text("<b>bold</b> & co", exact=True).first.wait_for()
    go(watched, recorded("ready"), "#/peers")
    page.get_by_label("Search").fill("workshop")
    expect(page.locator("tbody tr")).to_have_count(2)


@pytest.mark.parametrize("address", ["", "#/run"])
def test_keys_reach_everything(recorded, open_page, address):
    watched = open_page(f"{recorded('ready')}{address}")
    page = watched.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"Overview", "Rollouts", "Contributors", "Peers", "Weights", "Events", "Run"} <= reached


def test_the_link_of_a_page_is_in_sight_on_a_telephone(recorded, open_page):
    watched = open_page(f"{recorded('ready')}#/run", 375)
    expect(watched.page.locator("#nav a[aria-current]")).to_be_in_viewport(ratio=1)
    expect(watched.page.locator("#nav a").first).not_to_be_in_viewport(ratio=1)


def test_an_open_page_finds_a_node_that_was_started_again(open_page):
    server = Served(Recording(ready())).start()
    port, watched = server.port, open_page(server.url, settled=".figures")
    server.stop()
    expect(watched.page.locator("#line")).to_contain_text("recorded")
    again = replace(ready(versions=43), title="started again")
    server = Served(Recording(again, boot="second"), port).start()
    try:
        expect(watched.page.locator("#run")).to_have_text("started again", timeout=30_000)
    finally:
        server.stop()
