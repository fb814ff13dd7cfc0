"""The installed program: an installation adds this one name to the packages of a machine.

``node``, ``protocol``, ``roles`` and ``simulations`` are common words, which other distributions
may use too. So a wheel puts them into this folder, where they overwrite nobody's files, and our
processes look for them here first. In a checkout they lie beside it.
"""

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
INSTALLED = (_FOLDER / "node").is_dir()
"""Whether this is an installed wheel."""


def main() -> int:
    """Run ``prime-node``; returns its exit code."""
    find_packages_first()
    from node.cli.main import main as run  # noqa: PLC0415 - it is found only now

    return run()


def find_packages_first() -> None:
    """Have our packages found before others of their names, here and in child processes."""
    if INSTALLED and str(_FOLDER) not in sys.path[:1]:
        sys.path.insert(0, str(_FOLDER))
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_FOLDER), others)))
