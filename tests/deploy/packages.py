"""What a test needs of the system, by the name of its package."""

import shutil

import pytest


def needs(program, package):
    """Skip where ``program`` is not, and say what brings it."""
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program}: the package {package}"
    )
