"""Report the exit status and the use of a command, from outside of its walls.

A process starts with the largest size of the process that started it. So this one is small.
"""

import os
import sys

REPORT, FILTER = 3, 4

os.closerange(FILTER + 1, 1 << 16)  # what this process was left is not for a program
os.set_inheritable(REPORT, False)
child = os.posix_spawn(sys.argv[1], sys.argv[1:], {})
for file in (0, 1):
    os.close(file)
_, status, use = os.wait4(child, 0)
code = os.waitstatus_to_exitcode(status)
code = 128 - code if code < 0 else code
os.write(REPORT, f"{code} {use.ru_utime + use.ru_stime} {use.ru_maxrss}".encode())
