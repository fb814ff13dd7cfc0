"""Child processes that end with the test, even if it is killed."""

import shutil


def leashed(*command: object) -> list[str]:
    """Return a command whose process the kernel kills when its parent dies.

    Its own children end by themselves. Without util-linux the command is unchanged.
    """
    setpriv = shutil.which("setpriv")
    before = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
    return [*before, *map(str, command)]
