from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from node.network.connections.dial_history import ANSWERED_MAX, FAILED_MAX, DialHistory


def told(*dialled):
    outcomes = DialHistory()
    for now, (address, answered) in enumerate(dialled):
        outcomes.note(address, float(now), answered=answered)
    return outcomes


def test_addresses_are_dialled_by_last_answer_and_by_failures_since():
    outcomes = told(("a", True), ("b", True), ("c", False), ("d", False), ("d", False))
    assert outcomes.best_first(["d", "c", "new", "a", "b"]) == ["b", "a", "new", "c", "d"]
    assert outcomes.answered() == ["b", "a"]


def test_an_answer_makes_up_for_all_failures_and_a_failure_comes_after_an_answer():
    outcomes = told(("a", False), ("a", False), ("a", True), ("b", True), ("b", False))
    assert (outcomes.failures("a"), outcomes.failures("b")) == (0, 1)
    assert outcomes.answered() == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=300))
def test_addresses_that_only_failed_never_take_the_places_of_those_that_answered(dialled):
    outcomes = told(*((f"{host}/{number}", False) for number in range(8) for host, _ in dialled))
    outcomes.note("good", 0.0, answered=True)
    for host, _ in dialled * 8:
        outcomes.note(str(host), 1.0, answered=False)
    assert outcomes.answered() == ["good"]
    (table,) = outcomes.tables
    assert len(table) <= FAILED_MAX


class Dialled(RuleBasedStateMachine):
    """Comparison with a list of all recorded dials."""

    def __init__(self):
        super().__init__()
        self.outcomes, self.noted = DialHistory(), []

    @rule(number=st.integers(0, 2 * ANSWERED_MAX), answered=st.booleans())
    def note(self, number, answered):
        self.noted.append((str(number), answered))
        self.outcomes.note(str(number), float(len(self.noted)), answered=answered)

    @invariant()
    def counts_what_failed_since_it_answered(self):
        for address, _ in self.noted[-3:]:
            since = [ok for name, ok in self.noted if name == address][::-1]
            assert self.outcomes.failures(address) == [*since, True].index(True)

    @invariant()
    def remembers_the_last_that_answered(self):
        last = dict.fromkeys(name for name, ok in reversed(self.noted) if ok)
        assert set(self.outcomes.answered()) == set(list(last)[:ANSWERED_MAX])


TestDialled = Dialled.TestCase
