import pytest

from node.api.v1.queries import LIMIT_MAX, PeerQuery, QueryError, RolloutQuery, parse


def test_what_is_asked_is_read_and_the_rest_is_the_default():
    query = parse(RolloutQuery, {"state": "rejected", "version": "7", "node": "validator-1"})
    assert query == RolloutQuery(state="rejected", version=7)


@pytest.mark.parametrize(
    "given",
    [
        {"limit": "0"},
        {"limit": str(LIMIT_MAX + 1)},
        {"limit": "ten"},
        {"offset": "-1"},
        {"offset": "1e9"},
        {"text": "x" * 65},
        {"unknown": "1"},
        {"offset": str(2**60)},
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(given):
    (name,) = given
    with pytest.raises(QueryError, match=name):
        parse(PeerQuery, given)


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        (RolloutQuery(), True),
        (RolloutQuery(state="certified"), False),
        (RolloutQuery(state="rejected", reason="reward"), True),
        (RolloutQuery(reason="format"), False),
        (RolloutQuery(worker="12D3KooWabc"), True),
        (RolloutQuery(worker="Wabc"), True),
        (RolloutQuery(worker="D3"), False),
        (RolloutQuery(version=3), True),
        (RolloutQuery(version=0), False),
    ],
)
def test_a_rollout_is_taken_when_everything_fits(query, taken):
    assert query.takes("rejected", "12D3KooWabc", 3, "reward") is taken
