"""End of a testnet's children with it, in separate processes."""

import os
import subprocess
import sys

import psutil

from tests.live.waiting import PATIENCE_SECONDS

TESTNET = """
import multiprocessing
from tests.node.testnet.test_child import work

if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=work)
    process.start()
    print(process.pid, flush=True)
    process.join()
"""


def work():
    """Act as a node that never drains."""
    import signal  # noqa: PLC0415 - in the child alone
    import time  # noqa: PLC0415 - as above

    from node.testnet import child  # noqa: PLC0415 - as above

    child.DRAIN_SECONDS = 0.1
    signal.signal(signal.SIGTERM, lambda *_: None)
    child._leave_with_parent()
    os.write(1, b"works\n")
    while True:
        time.sleep(600)


def test_a_node_that_never_drains_ends_with_a_killed_testnet():
    testnet = subprocess.Popen([sys.executable, "-c", TESTNET], stdout=subprocess.PIPE, text=True)
    try:
        node = psutil.Process(int(testnet.stdout.readline()))
        assert testnet.stdout.readline() == "works\n"
        assert node.is_running()
    finally:
        testnet.kill()
        testnet.wait()
    node.wait(PATIENCE_SECONDS)
    testnet.stdout.close()
