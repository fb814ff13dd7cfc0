"""Losses and gradients of this trainer against TRL's, verl's and prime-rl's own code.

The same tensors go through both. ``CASES`` name settings that mean the same here and there; each
result has the largest difference of the loss, and of its gradient by any log-probability.

The libraries are no dependencies of this project. Install them elsewhere, and run the script with
that interpreter; one that cannot be imported is reported by name, with the reason:

    python -m venv ENV && ENV/bin/pip install -e . trl==1.16 verl==0.9.1
    ENV/bin/python benchmarks/training/losses.py --prime-rl src/prime_rl/trainer/rl/loss.py --json

prime-rl is in no registry: ``--prime-rl`` names the file in a checkout. ``--vectors FILE`` writes
the tensors and the libraries' results, which ``tests/roles/engines/training`` compares with.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from protocol.run.loss import LossSection
from roles.engines.training.batch import TrainingSample, collate
from roles.engines.training.losses import token_weights, weighted_loss

LENGTHS = (1, 6, 3, 8, 8, 2, 5, 7)
"""Tokens of the answers; ``WIDTH`` is the limit, which 3 and 4 reach."""

WIDTH = 8

ENTROPY = 1.5
"""Entropy at each token in nats, without a gradient."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Answers of two groups of four; log-probabilities are ``[8, 8]``, valid where ``mask``."""

    logprobs: Tensor
    behaviour: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """Loss, None if another constant is added to it, and its gradient by the log-probabilities."""

    loss: float | None
    gradient: Tensor


Library = Callable[[Tensors, LossSection], Result | None]
"""Return the result of the same loss, or None if the library has none."""


def rules(kind: str = "grpo", **values: Any) -> LossSection:
    """Return a loss with the trust region of 0.2, and a ratio up to 4 except for CISPO."""
    own = {"epsilon": 0.2} | ({} if kind == "cispo" else {"delta": 4.0})
    return LossSection(**cast("Any", {"kind": kind, **own, **values}))


CASES: dict[str, LossSection] = {
    "grpo": rules(),
    "clip higher": rules(epsilon_high=0.28),
    "sequence": rules(aggregation="sequence"),
    "constant": rules(aggregation="constant"),
    "cispo": rules("cispo", epsilon=1.0, epsilon_high=4.0),
    "cispo, both sides": rules("cispo"),
    "gspo": rules("gspo", epsilon=0.03, epsilon_high=0.04, aggregation="sequence"),
    "dppo_tv": rules("dppo_tv", delta=20.0),
    "dppo_tv, sequence": rules("dppo_tv", delta=20.0, aggregation="sequence"),
    "dppo_tv, log ratio": rules("dppo_tv", delta=1000.0, log_ratio_coefficient=1e-3),
    "dppo_kl": rules("dppo_kl", epsilon=0.05, delta=20.0),
    "importance cap": rules(importance_cap=2.0),
    "cispo, importance cap": rules("cispo", importance_cap=2.0),
    "reference": rules(kl_coefficient=0.04),
    "entropy": rules(entropy_coefficient=0.01),
    "truncated": rules(mask_truncated=True),
}


def tensors(seed: int = 0) -> Tensors:
    """Return log-probabilities with ratios from 0.1 to 10, so every bound acts on some token."""
    generator = torch.Generator().manual_seed(seed)

    def noise(deviation: float) -> Tensor:
        return deviation * torch.randn(len(LENGTHS), WIDTH, generator=generator)

    behaviour = -noise(1.0).abs() - 0.01
    shape = {"min": -6.0, "max": -1e-3}
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0.25, 1, 0]).view(2, 4)
    spread = rewards.std(1, keepdim=True) + 1e-6
    logprobs = (behaviour + noise(1.2)).clamp(**shape)
    return Tensors(
        logprobs=logprobs,
        behaviour=behaviour,
        old=(behaviour + noise(0.6)).clamp(**shape),
        reference=(logprobs + noise(0.5)).clamp(**shape),  # verl drops tokens of more than 10 nats
        advantages=((rewards - rewards.mean(1, keepdim=True)) / spread).flatten(),
        mask=torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None],
    )


def masked(made: Tensors, loss: LossSection) -> Tensor:
    """Return the tokens that count, ``[8, 8]``."""
    whole = torch.tensor(LENGTHS) < WIDTH
    return made.mask & whole[:, None] if loss.mask_truncated else made.mask


def own_result(made: Tensors, loss: LossSection) -> Result:
    """Return the result of this trainer's functions, of two passes in reverse order."""
    mask = masked(made, loss)
    rows = [row for row in range(len(LENGTHS)) if mask[row].any()]
    constant = float(len(LENGTHS) * WIDTH)
    weights = token_weights(loss.aggregation, [LENGTHS[row] for row in rows], constant)
    gradient, total = torch.zeros(len(LENGTHS), WIDTH), 0.0
    for part in (rows[4:], rows[:4]):
        known = {name: _lists(getattr(made, name), part) for name in ("behaviour", "old")}
        known["reference"] = _lists(made.reference, part)
        samples = [
            TrainingSample(
                row,
                0,
                (2,),
                (1,) * LENGTHS[row],
                known["behaviour"][place],
                float(made.advantages[row]),
                weights[rows.index(row)],
                known["old"][place] if loss.importance_cap is not None else (),
                known["reference"][place],
            )
            for place, row in enumerate(part)
        ]
        logprobs = torch.cat([made.logprobs[row, : LENGTHS[row]] for row in part]).requires_grad_()
        entropies = torch.full_like(logprobs, ENTROPY).detach()
        own, _ = weighted_loss(loss, collate(samples, "cpu"), logprobs, entropies)
        own.backward()
        assert logprobs.grad is not None
        total += float(own.detach())
        for row, found in zip(
            part, logprobs.grad.split([LENGTHS[row] for row in part]), strict=True
        ):
            gradient[row, : LENGTHS[row]] = found
    return Result(total, gradient)


def _lists(values: Tensor, rows: Sequence[int]) -> list[tuple[float, ...]]:
    return [tuple(values[row, : LENGTHS[row]].tolist()) for row in rows]


def backward(
    made: Tensors, compute: Callable[[Tensor], Tensor], *, has_loss: bool = True
) -> Result:
    """Return a library's result; ``compute`` makes the loss of the log-probabilities."""
    logprobs = made.logprobs.clone().requires_grad_()
    loss = compute(logprobs)
    loss.backward()
    assert logprobs.grad is not None
    return Result(float(loss.detach()) if has_loss else None, logprobs.grad * made.mask)


# TRL


def trl() -> Library:
    """Return the loss of TRL's ``GRPOTrainer``, called without a model or a trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: PLC0415 - another environment

    types = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}

    def result(made: Tensors, loss: LossSection) -> Result | None:
        if loss.kind.startswith("dppo") or (loss.kind == "cispo" and loss.epsilon < 1):
            return None
        mask = masked(made, loss).int()
        is_cispo = loss.kind == "cispo"
        high = loss.upper_epsilon + is_cispo  # its CISPO has the ratio itself
        inputs = {
            "prompt_ids": torch.zeros(len(LENGTHS), 1, dtype=torch.int64),
            "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.int64),
            "completion_ids": torch.zeros(len(LENGTHS), WIDTH, dtype=torch.int64),
            "completion_mask": mask,
            "advantages": made.advantages,
            "old_per_token_logps": made.behaviour if loss.importance_cap is None else made.old,
            "num_items_in_batch": mask.sum(),
            "ref_per_token_logps": made.reference,
            "importance_sampling_ratio": _capped(made, loss),
        }

        def compute(logprobs: Tensor) -> Tensor:
            entropies = torch.full_like(logprobs, ENTROPY).detach()
            trainer = _trl_trainer(loss, "cispo" if is_cispo else types[loss.aggregation], high)
            found = (logprobs, entropies, None)
            trainer._get_per_token_logps_and_entropies = lambda *_, **__: found  # noqa: SLF001
            return cast("Tensor", GRPOTrainer._compute_loss(trainer, None, inputs))  # noqa: SLF001

        return backward(made, compute)

    return result


def _capped(made: Tensors, loss: LossSection) -> Tensor:
    ratios = (made.old - made.behaviour).exp()
    return ratios.clamp(max=loss.importance_cap or 1.0)


def _trl_trainer(loss: LossSection, loss_type: str, epsilon_high: float) -> Any:
    return SimpleNamespace(
        loss_type=loss_type,
        importance_sampling_level="sequence" if loss.kind == "gspo" else "token",
        epsilon_low=loss.epsilon,
        epsilon_high=epsilon_high,
        beta=loss.kl_coefficient,
        max_completion_length=WIDTH,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=loss.importance_cap is not None,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(
            delta=loss.delta, use_bias_correction_kl=False, steps_per_generation=1
        ),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda one: one.reshape(-1),
            reduce=lambda one, **_: one,
        ),
        _entropy_bonus_enabled=loss.entropy_coefficient > 0,
        use_adaptive_entropy=False,
        entropy_coef=loss.entropy_coefficient,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


# verl


def verl() -> Library:
    """Return verl's registered policy losses, with its aggregation and penalty."""
    from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: PLC0415
    from verl.workers.config import ActorConfig  # noqa: PLC0415 - another environment

    names = {"grpo": "vanilla"}
    modes = {
        "token": "token-mean",
        "sequence": "seq-mean-token-mean",
        "constant": "seq-mean-token-sum-norm",
    }

    def result(made: Tensors, loss: LossSection) -> Result | None:
        if loss.log_ratio_coefficient or loss.mask_truncated or loss.entropy_coefficient:
            return None  # no such setting, or computed in its worker
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=4,
            use_dynamic_bsz=True,
            clip_ratio=loss.epsilon,
            clip_ratio_low=loss.epsilon,
            clip_ratio_high=loss.upper_epsilon,
            clip_ratio_c=loss.delta or 3.0,
        )
        mask = made.mask.float()
        old, weights = made.behaviour, None
        if loss.importance_cap is not None:
            old = made.old
            weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
                made.old - made.behaviour, mask, "token", loss.importance_cap
            )
        mode = modes[loss.aggregation]
        policy_loss = core_algos.get_policy_loss_fn(names.get(loss.kind, loss.kind))

        def compute(logprobs: Tensor) -> Tensor:
            advantages = made.advantages[:, None].expand_as(logprobs)
            found, _ = policy_loss(old, logprobs, advantages, mask, mode, config, weights)
            if loss.kl_coefficient:
                penalty = core_algos.kl_penalty(logprobs, made.reference, "k3")
                found = found + loss.kl_coefficient * core_algos.agg_loss(penalty, mask, mode)
            return cast("Tensor", found)

        config.global_batch_info["loss_scale_factor"] = WIDTH  # of "constant" alone
        return backward(made, compute)

    return result


# prime-rl


def prime_rl(path: Path | None) -> Library:
    """Return the default loss of a file of prime-rl; its configuration classes are replaced."""
    if path is None:
        raise ImportError("in no registry; --prime-rl names src/prime_rl/trainer/rl/loss.py")
    for name in ("prime_rl", "prime_rl.configs", "prime_rl.configs.trainer", "prime_rl.utils"):
        sys.modules.setdefault(name, ModuleType(name))
    configs = cast("Any", sys.modules["prime_rl.configs.trainer"])
    for name in ("CustomLossConfig", "DefaultLossConfig", "IPOLossConfig", "LossConfig"):
        setattr(configs, name, SimpleNamespace)
    utils = sys.modules.setdefault("prime_rl.utils.utils", ModuleType("prime_rl.utils.utils"))
    cast("Any", utils).import_object = None
    spec = importlib.util.spec_from_file_location("prime_rl_loss", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    def result(made: Tensors, loss: LossSection) -> Result | None:
        if loss.kind != "dppo_tv" or not loss.log_ratio_coefficient:
            return None
        settings = SimpleNamespace(
            dppo_mask_low=loss.epsilon,
            dppo_mask_high=loss.upper_epsilon,
            adv_tau=1.0,
            kl_tau=loss.log_ratio_coefficient,
        )

        def compute(logprobs: Tensor) -> Tensor:
            inputs = module.LossInputs(
                logprobs.flatten(),
                made.behaviour.flatten(),
                None,
                made.advantages[:, None].expand_as(logprobs).flatten(),
                made.mask.flatten(),
            )
            found: Tensor = module.default_loss_fn(inputs, settings).loss / made.mask.sum()
            return found

        return backward(made, compute, has_loss=False)  # of the ratio, not the log-probability

    return result


# Comparison


def libraries(
    prime_rl_file: Path | None,
) -> tuple[dict[str, Library], dict[str, str]]:
    """Return the libraries that can be imported by name, and why others cannot."""
    makers: dict[str, Callable[[], Library]] = {
        "TRL": trl,
        "verl": verl,
        "prime-rl": lambda: prime_rl(prime_rl_file),
    }
    found, missing = {}, {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            missing[name] = str(error)
    return found, missing


def version_of(name: str) -> str:
    """Return the installed version of a library; prime-rl's is that of its checkout."""
    try:
        return importlib.metadata.version(name.lower())
    except importlib.metadata.PackageNotFoundError:
        return "file"


def differences(
    made: Tensors, found: Mapping[str, Library]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the largest differences by case and library."""
    compared: dict[str, dict[str, dict[str, float | None]]] = {}
    for case, loss in CASES.items():
        own = own_result(made, loss)
        for name, library in found.items():
            theirs = library(made, loss)
            if theirs is None:
                continue
            compared.setdefault(case, {})[name] = {
                "loss": None if theirs.loss is None else abs(_known(own.loss) - theirs.loss),
                "gradient": float((own.gradient - theirs.gradient).abs().max()),
                "gradient_max": float(theirs.gradient.abs().max()),
            }
    return compared


def _known(value: float | None) -> float:
    assert value is not None
    return value


def vectors(made: Tensors, found: Mapping[str, Library]) -> dict[str, Any]:
    """Return the tensors, and each library's loss and gradient by case."""
    cases = []
    for case, loss in CASES.items():
        for name, library in found.items():
            theirs = library(made, loss)
            if theirs is not None:
                cases.append(
                    {
                        "case": case,
                        "library": f"{name} {version_of(name)}",
                        "loss": theirs.loss,
                        "gradient": theirs.gradient[made.mask].tolist(),
                    }
                )
    return {
        "tensors": {name: getattr(made, name).tolist() for name in Tensors.__slots__},
        "cases": cases,
    }


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prime-rl", type=Path, help="its src/prime_rl/trainer/rl/loss.py")
    parser.add_argument("--seeds", type=int, default=20, help="batches of tensors")
    parser.add_argument("--vectors", type=Path, help="write the first batch and its results")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def largest(batches: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the largest of each difference over batches."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for case, own in batches[0].items():
        for name, values in own.items():
            every = [batch[case][name] for batch in batches]
            found.setdefault(case, {})[name] = {
                key: None if value is None else max(one[key] for one in every)
                for key, value in values.items()
            }
    return found


def main() -> None:
    """Run the script."""
    options = arguments()
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        found, missing = libraries(options.prime_rl)
        batches = [differences(tensors(seed), found) for seed in range(options.seeds)]
    if options.vectors is not None:
        options.vectors.write_text(json.dumps(vectors(tensors(), found)) + "\n")
    results = {
        "libraries": {name: version_of(name) for name in found},
        "missing": missing,
        "differences": largest(batches),
    }
    if options.json:
        print(json.dumps(results))
        return
    for name, reason in missing.items():
        print(f"{name} cannot be imported: {reason}")
    for case, own in results["differences"].items():
        for name, values in own.items():
            loss = "-" if values["loss"] is None else f"{values['loss']:.1e}"
            print(f"{case:22} {name:9} loss {loss:8} gradient {values['gradient']:.1e}")


if __name__ == "__main__":
    main()
