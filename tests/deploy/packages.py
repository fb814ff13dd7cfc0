"""System programs that tests need, with the package of each."""

import shutil

import pytest


def needs(program, package):
    """Skip the test if ``program`` is missing, and name its package."""
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program}: the package {package}"
    )
