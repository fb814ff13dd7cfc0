"""What this software calls itself."""

from importlib.metadata import version

VERSION = version("prime-node")
SOFTWARE = f"prime-node/{VERSION}"
"""As others read it in our record."""
