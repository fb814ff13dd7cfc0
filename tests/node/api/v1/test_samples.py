from node.api.v1.samples import COLUMNS, RECENT_SECONDS, ResourceSample, ResourceSamples


def sample(at, **counts):
    return ResourceSample(**(dict.fromkeys(COLUMNS, 0) | {"at": float(at)} | counts))


def test_a_ring_that_is_full_keeps_the_whole_time_in_larger_steps():
    samples = ResourceSamples(samples_max=8)
    for at in range(1000):
        samples.note(sample(at, certified=3 * at))
        assert len(samples.history().at) <= 8
    history = samples.history()
    assert history.at[0] == 0 and history.at[-1] >= 1000 - 2 * history.interval_seconds
    assert history.interval_seconds == 128.0
    steps = {late - early for early, late in zip(history.at, history.at[1:], strict=False)}
    assert steps == {128.0}
    assert history.columns["certified"] == tuple(3 * at for at in history.at)


def test_the_rate_is_that_of_the_last_minute():
    samples = ResourceSamples()
    assert samples.certified_per_minute is None
    samples.note(sample(0))
    assert samples.certified_per_minute is None
    for at in range(1, 600):
        samples.note(sample(at, certified=at if at < 300 else 300 + 2 * (at - 300)))
    assert samples.certified_per_minute == 120.0
    assert RECENT_SECONDS == 60


def test_an_outcome_that_is_taken_back_makes_no_negative_rate():
    samples = ResourceSamples()
    samples.note(sample(0, certified=5))
    samples.note(sample(60, certified=4))
    assert samples.certified_per_minute == 0


def test_the_trainer_is_idle_at_as_many_looks_as_too_little_waited():
    samples = ResourceSamples()
    assert samples.trainer_idle_share is None
    for at in range(101):
        samples.note(sample(at, looks=at, looks_idle=at // 4))
    assert samples.trainer_idle_share == 0.25
