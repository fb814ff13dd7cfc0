from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.dissents import DISSENTS_MAX, VERDICTS_COUNTED, DissentTable
from protocol.core.containers import table_sizes
from protocol.core.crypto import digest
from protocol.core.types import PeerId

PEER, OTHER = PeerId("validator"), PeerId("other")


def commit(number):
    return digest(number.to_bytes(4, "big"))


def counted(*dissents, first=0, table=None):
    """Return a table of one validator's verdicts, one an epoch."""
    table = table or DissentTable()
    for number, is_dissent in enumerate(dissents, first):
        agreeing, dissenting = ([], [PEER]) if is_dissent else ([PEER], [])
        table.count(number, commit(number), agreeing, dissenting)
    return table


def test_a_validator_is_named_at_the_first_dissent_too_many():
    table = counted(*[True] * DISSENTS_MAX)
    assert PEER not in table.named
    assert table.verdicts_of(PEER) == (DISSENTS_MAX, DISSENTS_MAX)
    counted(True, first=DISSENTS_MAX, table=table)
    assert list(table.named) == [PEER]


def test_only_the_last_verdicts_count():
    spread = [True, *[False] * (VERDICTS_COUNTED - 1)] * (DISSENTS_MAX + 1)
    assert PEER not in counted(*spread).named
    late = [*[True] * DISSENTS_MAX, *[False] * (VERDICTS_COUNTED - DISSENTS_MAX), True]
    assert PEER not in counted(*late).named
    just = [*[True] * DISSENTS_MAX, *[False] * (VERDICTS_COUNTED - DISSENTS_MAX - 1), True]
    assert PEER in counted(*just).named


@given(st.lists(st.booleans(), max_size=VERDICTS_COUNTED), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(dissents, random):
    table, verdicts = DissentTable(), list(enumerate(dissents))
    random.shuffle(verdicts)
    for number, is_dissent in verdicts:
        parts = ([], [PEER]) if is_dissent else ([PEER], [])
        table.count(number, commit(number), *parts)
    assert (PEER in table.named) is (sum(dissents) > DISSENTS_MAX)
    assert table.verdicts_of(PEER) == (len(dissents), sum(dissents))


def test_a_verdict_older_than_the_last_ones_does_not_count():
    table = counted(*[False] * VERDICTS_COUNTED, first=100)
    counted(*[True] * (DISSENTS_MAX + 1), table=table)
    assert table.verdicts_of(PEER) == (VERDICTS_COUNTED, 0)
    assert PEER not in table.named


def test_a_certificate_that_replaces_another_counts_alone():
    table = DissentTable()
    for number in range(DISSENTS_MAX + 1):
        table.count(number, commit(number), [OTHER], [PEER] if number else [])
    table.count(1, commit(1), [OTHER], [])
    table.count(DISSENTS_MAX + 1, commit(DISSENTS_MAX + 1), [OTHER], [PEER])
    assert table.verdicts_of(PEER) == (DISSENTS_MAX, DISSENTS_MAX)
    assert PEER not in table.named
    assert table.verdicts_of(OTHER) == (DISSENTS_MAX + 2, 0)


def test_the_same_commit_in_another_epoch_is_another_verdict():
    table = DissentTable()
    for epoch in range(DISSENTS_MAX + 1):
        table.count(epoch, commit(0), [OTHER], [PEER])
    assert PEER in table.named


def test_the_table_is_bounded():
    table = counted(*[False] * (3 * VERDICTS_COUNTED))
    assert table_sizes(table.tables) == {"counted_verdicts": VERDICTS_COUNTED}
