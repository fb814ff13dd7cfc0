"""Two nodes with one key that start at once and have no earlier record."""

import shutil
import subprocess
import time

from tests.live.test_founded_run import (
    PATIENCE_SECONDS,
    PRIME_NODE,
    WITH_SHARED_ENGINES,
    Node,
    beginning,
    founded,
)

pytestmark = WITH_SHARED_ENGINES

REFRESH_EPOCHS = 3
LISTEN_SECONDS = 10.0
"""Listening time of a start in this run: three refreshes and an epoch."""


def test_of_two_nodes_with_one_key_that_start_at_once_one_goes_on(tmp_path, nodes):
    address = beginning(founded(tmp_path, epochs={"refresh_epochs": REFRESH_EPOCHS}), nodes)
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir(mode=0o700)
    subprocess.run([PRIME_NODE, "init", "--data-dir", str(places[0])], check=True)
    shutil.copy(places[0] / "identity.key", places[1])
    pair = [Node(place, "--role", "relay", "--initial-peers", address) for place in places]
    nodes += pair
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while all(one.process.poll() is None for one in pair):
        assert time.monotonic() < ends_at, "neither has ended"
        time.sleep(0.3)
    ended, goes_on = sorted(pair, key=lambda one: one.process.poll() is None)
    log = ended.log.read_text()
    assert ended.process.returncode == 73, log
    assert "another node uses our key" in log.rstrip().split("\n")[-1]
    time.sleep(2 * LISTEN_SECONDS)
    assert goes_on.until(lambda status: status["state"]) == "ready"
