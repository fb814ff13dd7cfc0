"""Memory of an engine's process, in a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import psutil
from roles.engines.builtin.engine import give_back_memory

blocks = [bytearray(b"x" * 65_536) for _ in range(4_000)]  # below the size that glibc maps alone
last = blocks.pop()  # at the end of the heap, so that nothing before it is given back by itself
del blocks
before = psutil.Process().memory_info().rss
give_back_memory()
print(before - psutil.Process().memory_info().rss, len(last))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_is_free_is_given_back():
    command = [sys.executable, "-c", PROGRAM]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(printed.split()[0]) > 200e6
