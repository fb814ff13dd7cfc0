"""Registry of the tables of one node that remote peers can fill."""

from protocol.containers import Table, table_sizes


class Tables:
    """Sizes and limits of all registered tables, by name."""

    def __init__(self) -> None:
        self._tables: list[Table] = []

    def register(self, *tables: Table) -> None:
        """Report these tables from now on."""
        self._tables += tables

    def sizes(self) -> dict[str, int]:
        """Return the size of the fullest table of each name."""
        return table_sizes(self._tables)

    def limits(self) -> dict[str, int]:
        """Return the limit of the tables of each name."""
        return {table.name: table.limit for table in self._tables}
