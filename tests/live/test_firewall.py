"""Rules of ``deploy/nftables``, on the loopback of a network namespace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.home_networks import why_not

RULES = Path(__file__).parents[2] / "deploy" / "nftables" / "prime-node.nft"
BURST = 24
MISSING = why_not()

CONNECTS = """
import json, socket
with socket.create_server(("0.0.0.0", 31337), backlog=200):
    def connect(source):
        with socket.socket() as caller:
            caller.settimeout(0.05)
            caller.bind((source, 0))
            try:
                caller.connect(("127.0.0.1", 31337))
            except TimeoutError:
                return False
            return True
    flood = [connect("127.0.0.2") for _ in range(60)]
    print(json.dumps([flood, [connect("127.0.0.3") for _ in range(10)]]))
"""


@pytest.mark.live
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_who_connects_again_and_again_is_not_let_through_and_others_are():
    setup = f"ip link set lo up && nft -f {RULES}"
    command = ["unshare", "--net", "sh", "-c", f'{setup} && exec "$0" -c "$1"']
    ran = subprocess.run(
        [*command, sys.executable, CONNECTS],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    flood, others = json.loads(ran.stdout)
    assert all(flood[:BURST])
    assert BURST <= sum(flood) <= BURST + 2
    assert all(others)
