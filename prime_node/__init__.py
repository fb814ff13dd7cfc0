"""The installed package: the only top-level name that an installation adds.

``node``, ``protocol``, ``roles`` and ``simulations`` are names that other distributions may use.
A wheel puts them into this folder, where they overwrite no other files, and our processes search
this folder first. In a checkout they lie beside it.
"""

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
INSTALLED = (_FOLDER / "node").is_dir()
"""True in an installed wheel, False in a checkout."""


def main() -> int:
    """Run ``prime-node`` and return its exit code."""
    find_packages_first()
    from node.cli.main import main as run  # noqa: PLC0415 - importable only now

    return run()


def find_packages_first() -> None:
    """Put our packages before others of the same name, here and in child processes."""
    if INSTALLED and str(_FOLDER) not in sys.path[:1]:
        sys.path.insert(0, str(_FOLDER))
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_FOLDER), others)))
