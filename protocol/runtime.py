"""The scoring runtime of a task in text: the interpreter and the packages that decide its scores.

The manifest pins the minor version of Python and exact versions of packages. A node's record holds
the digest of what the node really has, micro version included, so that two machines whose scores
differ can be compared.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from protocol.codec import encode
from protocol.crypto import digest
from protocol.section import Section
from protocol.types import Digest

PACKAGES_MAX = 16
"""Of one runtime; mathematics takes five."""

PackageName = Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]
PackageVersion = Annotated[str, Field(max_length=32, pattern=r"^[0-9][0-9a-z.+!]*$")]


class RuntimeSection(Section):
    """Scoring runtime that every machine which scores must have."""

    python: Annotated[str, Field(max_length=8, pattern=r"^3\.[1-9][0-9]?$", examples=["3.12"])]
    """Minor version of CPython, such as ``3.12``."""
    packages: Annotated[dict[PackageName, PackageVersion], Field(max_length=PACKAGES_MAX)] = Field(
        default_factory=dict
    )
    """Exact versions by package; empty for a task that the standard library scores."""

    def __str__(self) -> str:
        """Return it in words: ``Python 3.12 with sympy 1.14.0, mpmath 1.3.0``."""
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return f"Python {self.python}{' with ' if packages else ''}{packages}"


def runtime_digest(python: str, packages: Mapping[str, str]) -> Digest:
    """Return the digest of a runtime of full version ``python``, such as 3.12.1."""
    return digest(encode({"packages": dict(packages), "python": python}))
