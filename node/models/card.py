"""Model card of an exported version: ``README.md`` in the format of the Hugging Face hub."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from node.models.held import HeldRun, HeldVersion

_USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("DIR", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("DIR")
```

`vllm serve DIR` serves it, and `prime-node chat --model DIR` answers on a terminal."""

_ABOUT = (
    "A version of a model that the nodes of several people train by reinforcement learning with "
    "prime-node, without an orchestrator. `run.toml` is the signed manifest of the run."
)

REWARDS_MAX = 40
"""Rows of the table of rewards; more versions are sampled evenly."""

LICENCES = ("LICENSE", "LICENSE.txt", "NOTICE")

_LICENCE_KEYS = ("license", "license_name", "license_link")

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def card_of(held: HeldRun, version: HeldVersion, files: Mapping[str, bytes]) -> str:
    """Return the model card of a version; ``files`` are the run's bundle."""
    manifest = held.manifest
    facts = {
        "run": manifest.name,
        "run id": manifest.run_id.hex(),
        "version": f"{version.version} of {manifest.grpo.steps}",
        "policy digest (BLAKE3)": version.digest.hex(),
        "made": f"{datetime.fromtimestamp(version.created_at, UTC):%Y-%m-%d %H:%M} UTC",
        "base model": manifest.model.name,
        "architecture, dtype": f"{manifest.model.architecture}, {manifest.model.dtype}",
        "task": manifest.environment.name,
        "creator of the run": manifest.genesis.creator,
    }
    title = f"# {manifest.name}, version {version.version}"
    parts = [
        _front_matter(held, files),
        title,
        _ABOUT,
        _table(("", ""), facts.items()),
        "## Use",
        _use(held, files),
        "## Mean reward by version",
        _rewards(held.rewards(version.version)),
        "## Contributors",
        _contributors(held),
        "## Licence",
        _licence(files),
    ]
    return "\n\n".join(parts) + "\n"


def licence_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the licence fields in the front matter of the base model's card."""
    text = files.get("README.md", b"").decode("utf-8", "replace").replace("\r\n", "\n")
    found = _FRONT_MATTER.search(text)
    lines = found[1].splitlines() if found else []
    pairs = (line.partition(":") for line in lines)
    values = {key: value.strip().strip("'\"") for key, _, value in pairs if key in _LICENCE_KEYS}
    return {key: value for key, value in values.items() if value}


def _front_matter(held: HeldRun, files: Mapping[str, bytes]) -> str:
    values: dict[str, object] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["prime-node", "reinforcement-learning", "grpo"],
        **licence_of(files),
    }
    if "/" in held.manifest.model.name:  # the hub accepts only its own ids
        values["base_model"] = held.manifest.model.name
    # JSON is valid YAML, and quotes any name safely.
    return "\n".join(["---", *(f"{key}: {json.dumps(one)}" for key, one in values.items()), "---"])


def _use(held: HeldRun, files: Mapping[str, bytes]) -> str:
    if "tokenizer.json" not in files:
        return (
            "The task is over single characters, so there is no tokenizer: token 0 is padding, 1 "
            f"the end, and the others stand for the characters of `{held.manifest.environment.name}"
            "`. `prime-node chat --model DIR` reads and writes them."
        )
    return _USE


def _rewards(rewards: Sequence[tuple[int, float]]) -> str:
    if not rewards:
        return "No version up to this one learned from rollouts that the exporting node knows."
    step = max(1, -(-len(rewards) // REWARDS_MAX))
    shown = [one for place, one in enumerate(reversed(rewards)) if not place % step][::-1]
    return "Of the answers that each version learned from.\n\n" + _table(
        ("version", "mean reward"), ((str(version), f"{reward:.3f}") for version, reward in shown)
    )


def _contributors(held: HeldRun) -> str:
    found = held.contributions()
    if not found:
        return "The node that exported this version knows no certified rollouts."
    rows = ((one.peer, f"{one.rollouts:,}", f"{one.tokens:,}") for one in found)
    return (
        "The keys whose rollouts the validators of the run certified, as far as the node that "
        "exported this version knows them.\n\n" + _table(("key", "rollouts", "tokens"), rows)
    )


def _licence(files: Mapping[str, bytes]) -> str:
    texts = [f"`{name}`" for name in LICENCES if name in files]
    named = licence_of(files)
    words = f"The card of the base model names the licence {json.dumps(named)}." if named else ""
    beside = f"The base model's {' and '.join(texts)} came with it." if texts else ""
    none = (
        "The run carries no licence of its base model: look at the base model before you pass this "
        "one on."
    )
    return " ".join(filter(None, (words, beside))) or none


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
