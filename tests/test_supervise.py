"""The supervisor of the tests, on tests that end badly."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PLANTED = """
import os, signal, subprocess
from pathlib import Path

def test_fails():
    assert False

def test_leaves_a_process_and_dies():
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(__file__).with_name("pid").write_text(str(left.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_no_process_and_names_its_failures(tmp_path):
    planted = tmp_path / "test_planted.py"
    planted.write_text(PLANTED)
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.supervise", *options, str(planted)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pytest ended with exit code -9" in done.stdout
    assert "FAILED call     test_planted.py::test_fails" in done.stdout
    assert "now killed:\n  sleep 1000" in done.stdout
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
