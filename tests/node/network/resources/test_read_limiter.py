from hypothesis import given
from hypothesis import strategies as st

from node.network.resources.read_limiter import (
    ACCOUNTS_MAX,
    BURST_BYTES,
    READ_BYTES_MIN,
    RECOUNT_SECONDS,
    WAKE_BYTES,
    ReadRateLimiter,
    ReadRates,
)

RATES = ReadRates()
READ = 64 << 10


def reading(*trusted):
    return ReadRateLimiter(RATES, lambda peer: peer in trusted)


def reading_with_mesh(*members):
    return ReadRateLimiter(RATES, lambda _peer: False, lambda peer: peer in members)


def wait_seconds(table, peer, size, now):
    return table.wait_seconds(peer, now) if table.came(peer, size) else 0.0


def read_for(table, seconds, *peers, size=READ):
    """Let peers send at full rate, and return the bytes charged to each meanwhile."""
    due, read = dict.fromkeys(peers, 0.0), dict.fromkeys(peers, 0)
    while True:
        peer = min(due, key=due.__getitem__)
        now = due[peer]
        if now >= seconds:
            return read
        read[peer] += size + WAKE_BYTES
        due[peer] = now + wait_seconds(table, peer, size, now) + 0.001


def test_an_untrusted_peer_that_sends_all_it_can_is_read_at_its_rate():
    read = read_for(reading(), 60.0, "untrusted")["untrusted"]
    assert 60 * RATES.untrusted_peer < read <= 60 * RATES.untrusted_peer + BURST_BYTES + READ


def test_a_trusted_peer_is_read_faster():
    read = read_for(reading("worker"), 60.0, "worker")["worker"]
    assert 60 * RATES.trusted < read <= 60 * RATES.trusted + BURST_BYTES + READ


def test_untrusted_peers_share_one_rate_evenly():
    untrusted = [f"untrusted-{number}" for number in range(40)]
    read = read_for(reading(), 120.0, *untrusted, size=4096)
    bursts = RATES.untrusted + len(untrusted) * 2 * (READ_BYTES_MIN + 4096)
    assert sum(read.values()) <= 122 * RATES.untrusted + bursts
    assert sum(read.values()) > 100 * RATES.untrusted
    assert max(read.values()) - min(read.values()) <= BURST_BYTES + 4096


def test_hundreds_that_send_a_little_take_no_more_than_few_that_send_a_lot():
    """480 with 1.7 RPCs a second that take 0.8 ms each: two thirds of a core."""
    table, every, core_seconds = reading(), 0.6, 8e-4
    untrusted = [f"untrusted-{number}" for number in range(480)]
    due = {peer: number * every / 480 for number, peer in enumerate(untrusted)}
    taken, waits, said = 0.0, [], 0.0
    while (now := min(due.values())) < 60.0:
        peer = min(due, key=due.__getitem__)
        due[peer] = now + wait_seconds(table, peer, 2000, now) + every
        table.took(peer, core_seconds, 2000)
        taken += core_seconds if now > 10 else 0
        if now > said + 1:
            waits.append(wait_seconds(table, "new node", 500, now))
            said = now
    assert 0.8 * RATES.untrusted < taken / 50 / RATES.byte_seconds < 1.2 * RATES.untrusted
    assert waits == [0.0] * len(waits), "who sends less than a part of it waits for nobody"


def test_what_comes_of_many_that_send_a_little_counts_for_their_common_rate():
    table = reading()
    for second in range(1, 11):
        for number in range(400):
            assert not table.came(f"quiet-{number}", 2 << 10) or second > 1
        wait_seconds(table, "loud", READ_BYTES_MIN, float(second))
    assert not reading().came("new node", 1)
    assert table.came("new node", 1), "what anybody sends is looked at"


def test_who_sends_a_byte_at_a_time_is_charged_for_each_read():
    read = read_for(reading(), 60.0, *(f"untrusted-{number}" for number in range(40)), size=1)
    assert sum(read.values()) < 1.2 * 60 * RATES.untrusted


def test_a_quiet_untrusted_peer_does_not_wait_for_the_loud_ones():
    table = reading()
    loud = [f"untrusted-{number}" for number in range(20)]
    read_for(table, 30.0, *loud)
    waits = [wait_seconds(table, "quiet", 2048, 30.0 + second) for second in range(60)]
    assert waits == [0.0] * 60


def test_untrusted_peers_in_our_meshes_share_a_rate_of_their_own():
    """Two of 402 flooding peers are in our meshes: they are read as if alone."""
    outside, inside = [f"untrusted-{number}" for number in range(400)], ["member-0", "member-1"]
    table = reading_with_mesh(*inside)
    read = read_for(table, 30.0, *outside, *inside, size=4096)
    assert min(read[peer] for peer in inside) > 30 * RATES.untrusted_peer
    assert sum(read[peer] for peer in outside) > 25 * RATES.untrusted
    assert max(read[peer] for peer in outside) < 2 * 30 * RATES.untrusted / 400 + BURST_BYTES


def test_untrusted_peers_in_our_meshes_are_over_a_rate_together_too():
    members = [f"member-{number}" for number in range(60)]
    read = read_for(reading_with_mesh(*members), 60.0, *members, size=4096)
    bursts = RATES.untrusted + len(members) * 2 * (READ_BYTES_MIN + 4096)
    assert sum(read.values()) <= 62 * RATES.untrusted + bursts
    assert sum(read.values()) > 50 * RATES.untrusted


def test_who_leaves_our_meshes_is_read_as_the_others():
    members = {"member"}
    table = ReadRateLimiter(RATES, lambda _peer: False, members.__contains__)
    outside = [f"untrusted-{number}" for number in range(400)]
    read_for(table, 30.0, *outside, "member", size=4096)
    table.came("member", READ)
    in_mesh = table.wait_seconds("member", 31.0)
    members.clear()
    assert table.wait_seconds("member", 31.0) > 10 * in_mesh


def test_new_keys_have_no_burst_of_their_own_while_untrusted_peers_are_over_their_rate():
    table = reading()
    keys = RATES.untrusted // READ_BYTES_MIN * 4
    waits = [wait_seconds(table, f"untrusted-{n}", READ_BYTES_MIN * 2, 1.0) for n in range(keys)]
    assert waits[0] == 0.0
    assert waits[-1] > 0.0
    assert wait_seconds(table, "worker", READ_BYTES_MIN * 2, 1.0) > 0.0
    assert wait_seconds(reading("worker"), "worker", READ_BYTES_MIN * 2, 1.0) == 0.0


def test_accounts_that_owe_nothing_are_closed_and_their_number_is_bounded():
    table = reading()
    for number in range(ACCOUNTS_MAX + 100):
        wait_seconds(table, f"untrusted-{number}", 1, 0.0)
    assert len(table) == ACCOUNTS_MAX
    wait_seconds(table, "last", READ_BYTES_MIN + 1, 2 * RECOUNT_SECONDS)
    assert len(table) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["worker", "a", "b", "c"]),
            st.integers(1, READ),
            st.floats(0, 10),
        ),
        max_size=80,
    )
)
def test_nobody_gets_more_than_its_rate_and_a_burst(steps):
    table, now, read = reading("worker"), 0.0, {}
    free_at = {}
    for peer, size, pause in steps:
        now = max(now + pause, free_at.get(peer, 0.0))
        wait = wait_seconds(table, peer, size, now)
        assert wait >= 0
        free_at[peer] = now + wait
        read[peer] = read.get(peer, 0) + size
        rate = RATES.trusted if peer == "worker" else RATES.untrusted_peer
        assert read[peer] <= BURST_BYTES + READ + rate * free_at[peer] + 1
