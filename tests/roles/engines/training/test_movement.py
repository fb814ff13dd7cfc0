"""Versions of the real engine against the bound of the run: none exceeds it, some come close."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from node.storage import encodings
from protocol.core.types import RunId, Version
from protocol.run.training_bound import moment_ratio_max, movement_bound
from roles.engines.files.policy import DTYPES, write_policy
from roles.engines.training import learner
from roles.engines.training.checkpoint import load_checkpoint, save_checkpoint
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import Policy
from tests.roles.engines.tiny import grpo, model, sampling
from tests.roles.engines.training.batches import batch_of, shapes_of_state

RUN = RunId(b"\x17" * 32)

SETTINGS = {"learning_rate": 1e-3, "adam_betas": (0.9, 0.99), "steps": 1000, "weight_decay": 0.1}

UPDATES = 30

EXTREMES = torch.tensor([0.0, -0.0, 1e-40, -1e-39, 1e-37, 2.0**-7, -(2.0**-7), 0.0078, -3e-5])
"""Weights at zero, below the normal numbers, and next to a power of two."""

every_rounding = pytest.mark.parametrize("rounding", [None, "nearest", "dither"])


class Gradients:
    """Adversarial gradients, in place of those that the engine clips.

    The weights of a tensor follow one of several series, by their index. Some are the worst case of
    the proof, at three magnitudes, with their largest gradient in update ``worst``.
    """

    def __init__(self, betas, seed, worst):
        self._growth = betas[1] / betas[0] if betas[0] else 1e3
        self._generator = torch.Generator().manual_seed(seed)
        self._worst = worst
        self.count = 0

    def __call__(self, parameters, *_):
        self.count += 1
        for parameter in parameters:
            parameter.grad = self._next(parameter.shape)

    def _next(self, shape):
        age = self._worst - self.count
        grown = self._growth**-age if age >= 0 else 0.0
        noise = torch.randn(shape, generator=self._generator)
        series = torch.stack(
            [
                torch.full(shape, grown),
                torch.full(shape, -1e-6 * grown),
                torch.full(shape, 1e12 * grown),
                torch.full(shape, 1.0 if age <= 1 else 0.0),
                torch.full(shape, -1e15 if age == 0 else 1e-9),
                noise.sign() * 10 ** (4 * noise),
                torch.where(noise > 1.5, noise, 0.0),
                torch.full(shape, 1e-22 * (-1) ** self.count),
            ]
        )
        which = torch.randint(len(series), shape, generator=self._generator)
        fixed = torch.arange(which.numel()).reshape(shape) % (2 * len(series))
        return series.gather(0, fixed.where(fixed < len(series), which)[None])[0]


class Run:
    """A run whose trainer gets adversarial gradients, and its versions."""

    def __init__(self, directory, first, rounding, *, tied=False, **rules):
        dtype = "fp32" if rounding is None else "bf16"
        made = model(dtype, tie_word_embeddings=tied)
        self.model = made.model_copy(update={"rounding": rounding})
        self.rules = grpo(**SETTINGS | rules)
        self.directory = directory
        tensors = load_file(first.path)
        if tied:
            del tensors["lm_head.weight"]
        for tensor in tensors.values():
            flat = tensor.view(-1)
            flat[::3] *= torch.logspace(-6, 1, len(flat[::3]))
            flat[1 : 1 + len(EXTREMES)] = EXTREMES
        path = directory / "v0"
        self.policy = Policy(Version(0), write_policy(tensors, path, DTYPES[dtype]), path)
        self.engine = self.new_engine()

    def new_engine(self):
        return TorchTrainingEngine(self.model, sampling(), self.rules, run=RUN)

    async def step(self):
        """Train a version, and return the one before it."""
        metrics, before = await self.engine.step(batch_of()), self.policy
        assert metrics.updates == self.rules.updates_per_version
        version = Version(before.version + 1)
        path = self.directory / f"v{version}"
        self.policy = Policy(version, await self.engine.write_policy(path), path)
        return before

    def excess(self, base, share=1.0):
        """Return the largest excess of the newest version over a share of the bound."""
        bound = movement_bound(self.rules, self.policy.version - base.version)
        return encodings.excess_of(self.policy.path, base, replace(bound, step=bound.step * share))


@pytest.fixture
def start(tmp_path, policies, monkeypatch):
    """Return a function that makes a run under adversarial gradients."""
    runs = []

    async def started(rounding=None, *, seed=1, worst=UPDATES, **options):
        run = Run(tmp_path, policies[0], rounding, **options)
        runs.append(run)
        gradients = Gradients(run.rules.adam_betas, seed, worst)
        monkeypatch.setattr(learner, "clip_grads_with_norm_", gradients)
        await run.engine.load_policy(run.policy)
        return run

    yield started
    for run in runs:
        run.engine.close()


@every_rounding
@pytest.mark.parametrize("options", [{}, {"weight_decay": 1.0}, {"updates_per_version": 3}])
async def test_no_version_of_the_engine_exceeds_the_bound(start, rounding, options):
    run = await start(rounding, **options)
    first = run.policy
    for _ in range(UPDATES // run.rules.updates_per_version + 2):
        base = await run.step()
        assert run.excess(base) is None
        assert run.excess(first) is None, "nor over several versions"


async def test_the_worst_gradients_come_within_a_few_per_cent(start):
    run = await start(adam_betas=(0.9, 0.95), worst=100)
    for _ in range(100):
        base = await run.step()
        assert run.excess(base) is None
    assert run.excess(base, 0.97) is not None, "a smaller bound would refuse an honest version"


@every_rounding
@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.0, 0.5), (0.9, 0.999), (0.95, 0.98)])
async def test_whatever_the_decay_rates(start, rounding, betas):
    run = await start(rounding, adam_betas=betas, seed=2, worst=12, warmup_steps=2)
    for _ in range(14):
        assert run.excess(await run.step()) is None


@every_rounding
@pytest.mark.parametrize("kind", ["own state", "older state", "no state"])
async def test_the_first_version_after_a_resume_does_not_exceed_the_bound(
    start, rounding, kind, tmp_path
):
    run = await start(rounding, worst=14)
    for version in range(13):
        base = await run.step()
        if version == (10 if kind == "older state" else 12):
            state, policy = tmp_path / "state", run.policy
            await run.engine.save_state(state)
    run.engine.close()
    run.engine = run.new_engine()
    if kind == "no state":
        await run.engine.load_policy(run.policy)
    else:
        newer = run.policy if kind == "older state" else None
        await run.engine.load_state(state, policy.digest, newer)
    for _ in range(4):
        base = await run.step()
        assert run.excess(base) is None


async def test_an_output_layer_that_is_the_embedding_stays_within_the_bound(start):
    run = await start("dither", tied=True)
    for _ in range(6):
        assert run.excess(await run.step()) is None


@pytest.mark.parametrize("claimed", [0, 1, 3])
async def test_moments_that_claim_too_few_updates_are_refused(start, claimed, tmp_path):
    """The correction of few updates would turn them into a step beyond the bound."""
    run = await start(worst=UPDATES)
    for _ in range(UPDATES):
        await run.step()
    path = tmp_path / "state"
    await run.engine.save_state(path)
    shapes = {name: tuple(one.shape) for name, one in load_file(run.policy.path).items()}
    state = load_checkpoint(path, shapes)
    await run.engine.load_state(path, run.policy.digest)
    save_checkpoint(replace(state, steps=claimed), path, shapes_of_state(state))
    with pytest.raises(ValueError, match="moments"):
        await run.engine.load_state(path, run.policy.digest)


async def test_the_most_extreme_moments_that_are_accepted_keep_an_heir_within_the_bound(
    start, tmp_path
):
    """A hostile trainer must not make the next one publish a version that everybody refuses."""
    run = await start(worst=2, weight_decay=0.0)
    await run.step()
    path = tmp_path / "state"
    await run.engine.save_state(path)
    shapes = {name: tuple(one.shape) for name, one in load_file(run.policy.path).items()}
    state = load_checkpoint(path, shapes)
    for steps in (1, 2, 5, 100):
        ratio = 1.009 * moment_ratio_max(run.rules.adam_betas, steps)
        second = {name: torch.full(shape, 1e-4) for name, shape in shapes.items()}
        first = {name: torch.full(shape, ratio * 1e-2) for name, shape in shapes.items()}
        save_checkpoint(
            replace(state, first_moments=first, second_moments=second, steps=steps, version=steps),
            path,
            shapes,
        )
        heir = run.new_engine()
        await heir.load_state(path, run.policy.digest)
        run.engine, before = heir, run.engine
        before.close()
        base = run.policy
        await run.step()
        assert run.excess(base) is None
        run.policy = base
