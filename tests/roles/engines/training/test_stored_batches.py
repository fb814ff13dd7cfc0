"""A batch in files trains as one in memory."""

from dataclasses import replace

import pytest

from node.storage.row_files import RowDirectory
from protocol.core.crypto import digest
from roles.engines.files.stored_numbers import floats
from roles.ports.engines import EngineError, StoredNumbers
from roles.ports.storage import BatchRows
from tests.roles.engines.training.batches import batch_of

CASES = {
    "plain": {},
    "several passes": {"layout": {"pass_tokens": 17}},
    "old log-probabilities": {"updates_per_version": 2, "loss": {"importance_cap": 2.0}},
    "reference": {"loss": {"kl_coefficient": 0.1}},
}


async def learned(engine, policies, rows):
    """Recompute and train as a trainer does; return the results and the sequences."""
    batch = await rows.store(digest(b"rollout"), batch_of(groups=6))
    own = await engine.recompute(policies[1], batch, rows.logprobs("version-1"))
    known = await engine.recompute(policies[0], own, rows.logprobs("reference"))
    pairs = zip(own, known, strict=True)
    batch = [replace(one, reference_logprobs=other.logprobs) for one, other in pairs]
    return (await engine.step(batch), await engine.policy_digest()), batch


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_a_batch_in_files_trains_as_one_in_memory(make, policies, tmp_path, dtype, case):
    stores = BatchRows(), RowDirectory(tmp_path / "rows")
    engines = [await make(dtype, **CASES[case]) for _ in stores]
    there, here = [
        await learned(engine, policies, rows) for engine, rows in zip(engines, stores, strict=True)
    ]
    assert here[0][1] == there[0][1], "the same weights, to the bit"
    assert replace(here[0][0], gradient_norm=0.0) == replace(there[0][0], gradient_norm=0.0)
    for stored, known in zip(here[1], there[1], strict=True):
        numbers = [getattr(stored, name) for name in ("logprobs", "claimed", "reference_logprobs")]
        assert {type(one) for one in numbers} == {StoredNumbers}
        assert [floats(one).tolist() for one in numbers] == [
            [*known.logprobs],
            floats(known.claimed).tolist(),
            [*known.reference_logprobs],
        ]


async def test_a_damaged_file_is_a_failure_of_this_machine(make, policies, tmp_path):
    """A ``ValueError`` would blame the policy."""
    engine, rows = await make(), RowDirectory(tmp_path / "rows")
    batch = await rows.store(digest(b"rollout"), batch_of())
    path = batch[0].tokens.path
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(EngineError, match="shorter than"):
        await engine.recompute(policies[0], batch, rows.logprobs("version-0"))
    path.unlink()
    with pytest.raises(EngineError, match="No such file"):
        await engine.begin_step(batch)
    await engine.load_policy(policies[0])
    assert (await engine.step(batch_of())).updates
