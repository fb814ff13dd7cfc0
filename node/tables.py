"""How full the tables of a node are that strangers can fill, told by whoever keeps one."""

from collections.abc import Callable, Mapping


class Tables:
    """The sizes of all tables, by name; ``node.api.tables`` has their limits."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], Mapping[str, int]]] = []

    def watch(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        """Count what ``sizes`` returns in from now on."""
        self._kept.append(sizes)

    def sizes(self) -> dict[str, int]:
        """Return how full each table is; the fullest, where several have one name."""
        fullest: dict[str, int] = {}
        for sizes in self._kept:
            for name, size in sizes().items():
                if size >= fullest.get(name, 0):
                    fullest[name] = size
        return fullest
