"""Error between honest bf16 engines, and tokens until each lie is caught.

Two shapes of Qwen2 (0.1 and 0.5 billion weights), each with random and with briefly trained
weights. For comparison, Token-DiFR (arXiv 2511.20621) reports for models of 8 billion weights:
4-bit weights detected within 300 to 1,000 tokens, a quantised KV cache within about 10,000.

Each part is kept in ``--work``, so an interrupted run resumes.
"""

import argparse
import asyncio
import json
import pickle
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2ForCausalLM

from node.founding.recipes import toploc_toml
from protocol.run.recipe import Recipe
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.calibration.calibrate import (
    Calibration,
    bench_of,
    judged,
    kept,
    measured_on,
)
from roles.engines.calibration.measurement import ClaimRecording
from roles.engines.calibration.picture import draw
from roles.engines.calibration.proposal import propose
from roles.engines.calibration.workbench import honest_pairs, lies

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "intellect2.toml"
COMMON = {
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "eos_token_id": 1,
}
SHAPES = {
    "0.1b": {
        "vocab_size": 49_152,
        "hidden_size": 512,
        "intermediate_size": 1664,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
    "0.5b": {  # Qwen2.5-0.5B's
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}
LOGIT_DEVIATION = 3.0
"""Logit deviation of random weights: a token's probability is then about 0.1. With Hugging Face's
initial weights it is far lower, because all logits are alike."""

TRAINED_STEPS = 24
SYMBOLS = 64
"""Symbols of the training sequences; each has four possible successors."""


def write_model(directory: Path, shape: dict[str, int], *, trained: bool) -> None:
    """Write a Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**COMMON, **shape}
    torch.manual_seed(1)
    model = build_model(configuration("qwen2", config), torch.float32, "cpu")
    if trained:
        _train(model)
    else:
        sharpen(model)
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in tensors_of(model).items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    values = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **config}
    (directory / "config.json").write_text(json.dumps(values))


def sharpen(model: Qwen2ForCausalLM) -> None:
    """Scale random weights to this logit deviation."""
    spread = float(model.lm_head.weight.detach().std()) * model.config.hidden_size**0.5
    model.model.norm.weight.data.fill_(LOGIT_DEVIATION / spread)


def _train(model: torch.nn.Module) -> None:
    """Train some steps on sequences with two bits of entropy per symbol."""
    followers = torch.randint(0, SYMBOLS, (SYMBOLS, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(TRAINED_STEPS):
        rows = torch.randint(0, SYMBOLS, (8, 1))
        while rows.shape[1] < 32:
            choice = torch.randint(0, 4, (8, 1))
            rows = torch.cat([rows, followers[rows[:, -1:], choice[:, :, None]][:, :, 0]], dim=1)
        loss = model(input_ids=rows, labels=rows, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def record(
    recipe: Recipe, work: Path, shape: str, *, trained: bool, sequences: int, tokens: int, lot: int
) -> tuple[list[ClaimRecording], list[ClaimRecording]]:
    """Return honest pairs and, with trained weights, lies; reuse those kept in ``work``.

    Lots after the first are honest pairs of the largest batch only.
    """
    name = f"{shape} {'trained' if trained else 'random'}"
    known = work / f"{name.replace(' ', '-')}{f'.{lot}' if lot else ''}.pickle"
    if known.exists():
        found: tuple[list[ClaimRecording], list[ClaimRecording]] = pickle.loads(known.read_bytes())
        return found
    directory = work / name.replace(" ", "-")
    if not (directory / "config.json").exists():
        write_model(directory, SHAPES[shape], trained=trained)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    async def measure() -> tuple[list[ClaimRecording], list[ClaimRecording]]:
        with tempfile.TemporaryDirectory() as folder:
            named = f"/lot {lot}" if lot else ""
            bench = bench_of(recipe, directory, Path(folder), "cpu", sequences, tokens, named)
            batches = (64,) if lot else (1, 16, 64)
            pairs = await honest_pairs(bench, batches, ("sdpa", "eager"), say)
            return pairs, await lies(bench, 64, say) if trained and not lot else []

    found = asyncio.run(measure())
    known.write_bytes(pickle.dumps(found))
    return found


def tables(
    recipe: Recipe,
    model: str,
    pairs: list[ClaimRecording],
    told: list[ClaimRecording],
    margin: float,
) -> tuple[dict[str, object], Calibration]:
    """Return the results under thresholds calibrated on the model's own honest pairs."""
    rules = propose(pairs, kept(recipe), measured_on(model, "bf16", "cpu"), margin)
    found = judged(rules, pairs, told)
    table = {
        "model": model,
        "margin": margin,
        "honest_tokens": sum(item.tokens for item in pairs),
        "honest_rejected_max": max(max(item.rejected) for item in found.honest),
        "lies": [item.summary() for item in found.caught],
    }
    return table, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "audit")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sequences", type=int, nargs="+", default=[400, 96])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--lots", type=int, default=2, help="sets of prompts and noise")
    parser.add_argument("--margins", type=float, nargs="+", default=[1.0, 1.5])
    parser.add_argument("--pictures", type=Path, help="folder for a plot of each model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(RECIPE.read_text())
    options.work.mkdir(parents=True, exist_ok=True)
    results, every = [], []
    for shape, sequences in zip(options.shapes, options.sequences, strict=False):
        for trained in (False, True):
            pairs: list[ClaimRecording] = []
            told: list[ClaimRecording] = []
            for lot in range(options.lots):
                honest, false = record(
                    recipe,
                    options.work,
                    shape,
                    trained=trained,
                    sequences=sequences,
                    tokens=options.tokens,
                    lot=lot,
                )
                pairs += honest
                told += false
            every += pairs
            model = f"{shape} {'trained' if trained else 'random'}"
            for margin in options.margins:
                table, found = tables(recipe, model, pairs, told, margin)
                results.append(table)
            if options.pictures:
                name = f"{model.replace(' ', '-')}.svg"
                (options.pictures / name).write_text(draw(found))
    names = f"Qwen2 shapes of {' and '.join(options.shapes)}, random and briefly trained,"
    on = measured_on(names, "bf16", "cpu")
    rules = propose(every, kept(recipe), on, max(options.margins))
    if options.json:
        print(json.dumps({"models": results, "toploc": rules.model_dump(mode="json")}))
        return
    for table in results:
        print(*(f"{name}: {value}" for name, value in table.items() if name != "lies"), sep=", ")
        for lie in table["lies"]:
            print("  ", *(f"{value!s:>12}" for value in lie.values()))
    print(toploc_toml(rules))


if __name__ == "__main__":
    main()
