"""Where a wheel puts what a checkout has side by side (see ``prime_node``)."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "prime_node"
INSIDE = ("configs", "node", "protocol", "roles", "simulations")


class OnePackage(BuildHookInterface):  # type: ignore[type-arg]
    """Puts all packages into one; an editable installation has them where they are."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders, unless the wheel only points at the checkout."""
        if version == "standard":
            build_data["force_include"] |= {name: f"{PACKAGE}/{name}" for name in INSIDE}
