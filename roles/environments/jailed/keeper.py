"""Supervisor outside of a jail: runs its command, reports the exit status and resource use.

A process starts with the peak memory of its parent, so this one is small.
"""

import os
import sys

REPORT, FILTER = 3, 4

os.closerange(FILTER + 1, 1 << 16)  # a program must not inherit other descriptors
os.set_inheritable(REPORT, False)
child = os.posix_spawn(sys.argv[1], sys.argv[1:], {})
for file in (0, 1):
    os.close(file)
_, status, use = os.wait4(child, 0)
code = os.waitstatus_to_exitcode(status)
code = 128 - code if code < 0 else code
os.write(REPORT, f"{code} {use.ru_utime + use.ru_stime} {use.ru_maxrss}".encode())
