"""Processes that a test starts and that end with it, also where the test itself is killed."""

import shutil


def leashed(*command: object) -> list[str]:
    """Return a command whose process the kernel kills when the process that starts it dies.

    What that one has started ends with it by itself. Without util-linux the command stays as it is.
    """
    setpriv = shutil.which("setpriv")
    before = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
    return [*before, *map(str, command)]
