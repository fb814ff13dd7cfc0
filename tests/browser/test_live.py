"""Pages of a live testnet with a dishonest worker, while its nodes are killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.browser.test_pages import PAGES, expect, go
from tests.worlds.leashed import leashed

pytestmark = [pytest.mark.live, pytest.mark.slow]

PRIME_NODE = str(Path(sys.executable).with_name("prime-node"))
PATIENCE_SECONDS = 300.0
WORDS = "testnet --steps 1000 --minutes 20 --inference 1 --validators 2 --cheaters 1 --no-view"


@pytest.fixture(scope="module")
def testnet(tmp_path_factory):
    """Return the pages' address and the directory of a testnet that has rejected a rollout."""
    directory = tmp_path_factory.mktemp("testnet") / "swarm"
    output = directory.with_suffix(".out")
    with output.open("wb") as out:
        process = subprocess.Popen(
            leashed(PRIME_NODE, *WORDS.split(), "--keep", "--data-dir", directory),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield found(output, r"dashboard: (http://\S+)"), directory
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def found(output, pattern):
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while (match := re.search(pattern, output.read_text())) is None:
        assert time.monotonic() < ends_at, output.read_text()[-2000:]
        time.sleep(0.5)
    return match.group(1)


def endpoint(directory, name):
    return json.loads((directory / "nodes" / name / "api.json").read_text())


def test_the_whole_swarm_is_shown_at_one_address(testnet, open_page):
    url, _ = testnet
    watched = open_page(url, settled=".figures")
    page, patience = watched.page, 1000 * PATIENCE_SECONDS
    expect(page.locator(".events").get_by_text("Slashed").first).to_be_visible(timeout=patience)
    expect(page.locator("#asked option")).to_have_count(7)
    page.goto(f"{url}#/rollouts?state=certified")
    page.locator("tbody a").first.click()
    expect(page.locator(".way")).to_be_visible(timeout=patience)
    expect(page.locator(".gauge").first).to_be_visible(timeout=patience)
    expect(page.locator(".prompt").first).to_contain_text("=", timeout=patience)
    page.goto(f"{url}#/rollouts?state=rejected")
    expect(page.locator("tbody tr").first).to_be_visible(timeout=patience)
    for width in (375, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        for name in PAGES:
            go(watched, url, f"#/{name}")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    watched.check(url)


def test_a_page_that_is_open_finds_its_node_after_a_kill(testnet, open_page):
    _, directory = testnet
    before = endpoint(directory, "validator-1")
    watched = open_page(f"http://127.0.0.1:{before['port']}/", settled=".figures")
    line, patience = watched.page.locator("#line"), 1000 * PATIENCE_SECONDS
    expect(line).to_have_text("ready", timeout=patience)
    os.kill(before["pid"], signal.SIGKILL)
    expect(line).to_contain_text("disconnected", timeout=patience)
    command = (directory / "nodes" / "validator-1" / "command.txt").read_text()
    node = subprocess.Popen(
        leashed(PRIME_NODE, *shlex.split(command)[1:]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        expect(line).to_have_text("ready", timeout=patience)
        assert endpoint(directory, "validator-1")["port"] == before["port"]
        watched.page.get_by_role("link", name="Events", exact=True).click()
        expect(watched.page.locator(".events li").first).to_be_visible(timeout=patience)
        slashed = watched.page.locator(".events").get_by_text("Slashed")
        expect(slashed.first).to_be_visible(timeout=patience)
    finally:
        node.terminate()
        node.wait(PATIENCE_SECONDS)
