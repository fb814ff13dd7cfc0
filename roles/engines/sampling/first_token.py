"""How long after its load a policy is first used."""

from collections.abc import Callable

from protocol.core.types import Version
from roles.ports.engines import FirstToken


class FirstTokenWatch:
    """Is told of loads and of tokens, in whichever thread; ``found`` is that of the last load."""

    def __init__(self) -> None:
        self.found: FirstToken | None = None
        self._awaited: tuple[Version, float, Callable[[], float]] | None = None

    def loaded(self, version: Version, now: Callable[[], float]) -> None:
        """Note a load that ends now."""
        self.found, self._awaited = None, (version, now(), now)

    def sampled(self) -> None:
        """Note that there are tokens of what was loaded."""
        if self._awaited is not None:
            version, loaded_at, now = self._awaited
            self.found, self._awaited = FirstToken(version, now() - loaded_at), None
