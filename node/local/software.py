"""Name and version of this software."""

from importlib.metadata import version

VERSION = version("prime-node")
SOFTWARE = f"prime-node/{VERSION}"
"""Value of ``software`` in the node's record."""
