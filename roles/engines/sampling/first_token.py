"""Seconds from a policy's load to its first token."""

from collections.abc import Callable

from protocol.core.types import Version
from roles.ports.engines import FirstToken


class FirstTokenWatch:
    """Timer, called from any thread; ``found`` is the result for the last load."""

    def __init__(self) -> None:
        self.found: FirstToken | None = None
        self._awaited: tuple[Version, float, Callable[[], float]] | None = None

    def loaded(self, version: Version, now: Callable[[], float]) -> None:
        """Record a load that ends now."""
        self.found, self._awaited = None, (version, now(), now)

    def sampled(self) -> None:
        """Record that the loaded policy has produced tokens."""
        if self._awaited is not None:
            version, loaded_at, now = self._awaited
            self.found, self._awaited = FirstToken(version, now() - loaded_at), None
