"""Free memory between blocks in use, which libc keeps until it is asked."""

import platform

import psutil
import pytest

from roles.engines.builtin.engine import give_back_memory

BLOCK_BYTES, BLOCKS = 65_536, 4_000
"""Smaller than what glibc maps alone; 262 MB together."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_is_free_is_given_back():
    blocks = [bytearray(b"x" * BLOCK_BYTES) for _ in range(BLOCKS)]
    kept = blocks[::50]  # between the others, so that none of these is at the end of the heap
    before = psutil.Process().memory_info().rss
    del blocks
    held = psutil.Process().memory_info().rss
    give_back_memory()
    assert len(kept) == BLOCKS / 50
    assert held > before - 20e6
    assert held - psutil.Process().memory_info().rss > 200e6
