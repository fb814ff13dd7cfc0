"""Import of hivemind without torch: its packages without their ``__init__`` modules.

``import hivemind`` imports averaging, experts and optimisers, and with them torch. That costs each
daemon 6 s and 200 MB, for a control client and a directory without tensors. This module registers
the packages without running ``__init__``, and resolves the names in use from their defining
modules. The rest of hivemind is unchanged.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_DEFINED_IN: Mapping[str, Mapping[str, str]] = {
    "hivemind": {},
    "hivemind.utils": {
        "DHTExpiration": "timed_storage",
        "MSGPackSerializer": "serializer",
        "SerializerBase": "serializer",
        "TimedStorage": "timed_storage",
        "ValueWithExpiration": "timed_storage",
        "get_dht_time": "timed_storage",
        "get_logger": "logging",
    },
    "hivemind.dht": {"DHTID": "routing", "DHTNode": "node"},
}


def install() -> None:
    """Register the packages, unless hivemind is imported or not installed."""
    if "hivemind" in sys.modules or importlib.util.find_spec("hivemind") is None:
        return
    for name, defined_in in _DEFINED_IN.items():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        package = importlib.util.module_from_spec(spec)
        package.__dict__["__getattr__"] = _lookup(name, defined_in)
        sys.modules[name] = package
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, package)


def _lookup(name: str, defined_in: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of package ``name``."""

    def get(attribute: str) -> Any:
        if attribute not in defined_in:
            raise AttributeError(f"{name}.{attribute} is not in use here")
        return getattr(import_module(f"{name}.{defined_in[attribute]}"), attribute)

    return get
