"""Reader of the rows of a data set in a parquet file."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from typing_extensions import override

from roles.ports.text import Chat, ChatMessage, Rows

ROW_BYTES_MAX = 1 << 20
"""Largest size in UTF-8 of a question and its tests; a guess, ten times the rows of published
programming data sets."""

GROUP_BYTES_MAX = 256 << 20
"""Largest row group; rows are read in groups."""

PASS_RATE = "pass_rate"  # noqa: S105 - no password
"""Column with the fraction of attempts in which some model solved a row."""

CHAT_BEFORE = "chat_before"
"""Optional column with the messages before a prompt, as JSON."""

OPTIONAL_COLUMNS = (CHAT_BEFORE,)

ROLES = ("system", "user", "assistant")


class UnusableRowError(ValueError):
    """Row that a run cannot use; the message is the reason in one line."""


class ParquetRows(Rows):
    """Text columns of a parquet file; the row group read last is cached.

    A row has the ``columns``, and the ``OPTIONAL_COLUMNS`` that are present and not null. With two
    ``pass_rates`` (inclusive), rows outside of them are skipped as too easy or too hard to learn
    from (the offline filter of INTELLECT-2). Raises ``ValueError`` for an invalid file or one
    without rows.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        pass_rates: Sequence[float] = (),
    ) -> None:
        from pyarrow import ArrowException  # noqa: PLC0415 - only where a run has a data set
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - as above

        self._required = tuple(columns)
        try:
            self._file = ParquetFile(path)
            names = self._file.schema_arrow.names
            self._columns = [*columns, *(name for name in OPTIONAL_COLUMNS if name in names)]
            self._check(path, rated=bool(pass_rates))
            self._admitted = self._filtered(pass_rates)
        except (ArrowException, OSError) as error:
            raise ValueError(f"{path} is not a data set: {error}") from None
        if not self.count:
            within = (
                f" with a pass rate from {pass_rates[0]} to {pass_rates[1]}" if pass_rates else ""
            )
            raise ValueError(f"{path} has no row{within}")
        metadata = self._file.metadata
        sizes = (metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
        self._ends = list(accumulate(sizes))
        self._group: tuple[int, Any] | None = None

    def _check(self, path: Path, *, rated: bool) -> None:
        schema = self._file.schema_arrow
        wanted = [*self._columns, *([PASS_RATE] if rated else [])]
        missing = [name for name in wanted if name not in schema.names]
        if missing:
            raise ValueError(f"{path} has no column {', '.join(missing)}")
        for name in wanted:
            kind, is_fit = schema.field(name).type, _is_number if name == PASS_RATE else _is_text
            if not is_fit(kind):
                wants = "numbers" if name == PASS_RATE else "text"
                raise ValueError(f"{path}: column {name} holds {kind}, not {wants}")
        metadata = self._file.metadata
        groups = (metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
        if max(groups, default=0) > GROUP_BYTES_MAX:
            raise ValueError(f"{path} has a row group of more than {GROUP_BYTES_MAX} bytes")

    def _filtered(self, pass_rates: Sequence[float]) -> Sequence[int]:
        if not pass_rates:
            return range(self._file.metadata.num_rows)
        low, high = pass_rates
        rates = self._file.read([PASS_RATE]).column(0).to_pylist()
        return [n for n, rate in enumerate(rates) if rate is not None and low <= rate <= high]

    @property
    @override
    def count(self) -> int:
        return len(self._admitted)

    @override
    def row(self, index: int) -> Mapping[str, str]:
        place = self._admitted[index]
        group = bisect_right(self._ends, place)
        if self._group is None or self._group[0] != group:
            self._group = None  # else two groups would be in memory
            self._group = group, self._file.read_row_group(group, columns=self._columns)
        offset = place - (self._ends[group - 1] if group else 0)
        try:
            values = self._group[1].slice(offset, 1).to_pylist()[0]
        except UnicodeDecodeError:
            raise UnusableRowError(f"row {place} holds text that is not UTF-8") from None
        row = {
            name: value
            for name, value in values.items()
            if name in self._required or value is not None
        }
        if null := [name for name, value in row.items() if value is None]:
            raise UnusableRowError(f"row {place}: {null[0]} is null")
        check_texts(row)
        return row


def check_texts(row: Mapping[str, str]) -> None:
    """Raise ``UnusableRowError`` for text that UTF-8 cannot encode, or that is too long."""
    size = 0
    for name, text in row.items():
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            raise UnusableRowError(f"{name} holds text that is not Unicode") from None
    if size > ROW_BYTES_MAX:
        raise UnusableRowError(f"{size:,} bytes of text, the limit is {ROW_BYTES_MAX:,}")


def chat_of(row: Mapping[str, str]) -> Chat:
    """Return the chat of a row; raises ``UnusableRowError`` for an invalid one."""
    before = row.get(CHAT_BEFORE)
    if before is None:
        return Chat(row["prompt"])
    try:
        messages = json.loads(before)
    except (ValueError, RecursionError):
        raise UnusableRowError(f"{CHAT_BEFORE} is not JSON") from None
    return Chat(row["prompt"], read_messages(messages))


def read_messages(messages: Any) -> tuple[ChatMessage, ...]:
    """Return messages from JSON; raises ``UnusableRowError`` for invalid ones."""
    if not isinstance(messages, list):
        raise UnusableRowError("a chat must be a list of messages")
    return tuple(map(_message, messages))


def _message(item: Any) -> ChatMessage:
    match item:
        case {"role": str(role), "content": str(content)} if len(item) == 2 and role in ROLES:
            return ChatMessage(role, content)
        case _:
            raise UnusableRowError(
                f"a message of a chat must have a role ({', '.join(ROLES)}) and a content that is "
                f"text, and nothing else: {str(item)[:80]!r}"
            )


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 - as above

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 - as above

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
