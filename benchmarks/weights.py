"""Time and memory of a large policy's path from a Hugging Face directory to another node's engine.

It makes a directory of random bf16 weights and founds a run with it (``prime-node run create``). A
trainer publishes it; a node that is worker and validator fetches it through libp2p on loopback and
generates with it. All run as normal processes, measured from outside:

* peak resident memory (``VmHWM``, exact), which includes mapped files and shared libraries;
  sampled peaks of anonymous and, for the daemons, proportional memory (PSS);
* each daemon's own event loop delays (``/status``), and its log lines of stalls, with the running
  task and the time without a core.

Engines are listed separately from their daemons.

Usage: ``python benchmarks/weights.py [--megabytes N] [--directory DIR] [--json]``
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import tomlkit
import torch
from safetensors.torch import save_file

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import shapes_of

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "runs" / "intellect2.toml"
PRIME_NODE = [sys.executable, "-m", "node.cli.main"]

LARGE = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 4608,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
"""Width and vocabulary of published models of this size."""

SMALL = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
LARGE_BYTES_MIN = 1 << 30
OTHERS = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
FILE_BYTES = 500_000_000
"""Approximate size of the directory's files; published models have larger ones."""

SAMPLE_SECONDS = 0.25
STAGE_SECONDS = 900.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=2000, help="approximate weight bytes")
    parser.add_argument("--directory", type=Path, help="for all files, some 25 bytes per weight")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=options.directory) as directory:
        found = measure(Path(directory), options.megabytes * 1_000_000)
    print(json.dumps(found, indent=None if options.json else 2))


def measure(directory: Path, weights_bytes: int) -> dict[str, Any]:
    """Return time and memory for a policy of about ``weights_bytes``."""
    run = directory / "run"
    weights = write_model(directory / "model", weights_bytes)
    (directory / "recipe.toml").write_text(recipe())
    creating = Process(found_run(directory, run), directory / "create.log")
    created = creating.wait()
    trainer = Node(run / "trainer-1", "trainer", ["--new-swarm", "--run", str(run / "run.toml")])
    nodes = [trainer]
    try:
        address = trainer.until("listening")["addresses"][0]
        joining = ["--yes", "--initial-peers", address]
        worker = Node(run / "validator-1", "inference,validator", joining)
        nodes.append(worker)
        published = trainer.until("version published")
        arrived, loaded, committed = map(
            worker.until, ("policy arrived", "policy loaded", "rollout committed")
        )
        loops = [one.status()["loop"] for one in nodes]
    finally:
        for one in nodes:
            one.stop()
    names = ("trainer", "worker")
    return {
        "weights_bytes": 2 * weights,
        "seconds": {
            "run create": created,
            "trainer, from its start to the published version": published["after"],
            "transfer until it is one synced file": arrived["seconds"],
            "loading": loaded["seconds"],
            "worker, from its start to a rollout": committed["after"],
        },
        "memory_mb": {
            "run create": asdict(creating.memory["itself"]),
            **{
                f"{name}: {part}": asdict(memory)
                for name, one in zip(names, nodes, strict=True)
                for part, memory in one.memory.items()
            },
        },
        "loops": dict(zip(names, loops, strict=True)),
        "stalls": {name: one.stalls() for name, one in zip(names, nodes, strict=True)},
    }


# The published model


def write_model(path: Path, weights_bytes: int) -> int:
    """Write a Hugging Face directory of random weights in several files; return their count."""
    sizes = LARGE if weights_bytes >= LARGE_BYTES_MIN else SMALL
    values = {**OTHERS, **sizes, "num_hidden_layers": 1}
    one, two = (weights_of(values | {"num_hidden_layers": layers}) for layers in (1, 2))
    values["num_hidden_layers"] = max(1, round((weights_bytes / 2 - one) / (two - one)) + 1)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(values))
    torch.manual_seed(1)
    places: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    shapes = shapes_of(configuration("qwen3", values))
    for number, (name, shape) in enumerate(shapes.items(), start=1):
        tensors[name] = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
        here = sum(tensor.nbytes for tensor in tensors.values())
        if here >= min(FILE_BYTES, weights_bytes / 3) or number == len(shapes):
            file = f"model-{len(set(places.values())) + 1:05}.safetensors"
            save_file(tensors, path / file, {"format": "pt"})
            places |= dict.fromkeys(tensors, file)
            tensors.clear()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return weights_of(values)


def weights_of(values: dict[str, Any]) -> int:
    """Return a configuration's number of weights."""
    return sum(map(_product, shapes_of(configuration("qwen3", values)).values()))


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def recipe() -> str:
    """Return INTELLECT-2's rules for bf16 with rollouts that take moments."""
    values = tomllib.loads(RECIPE.read_text())
    values["environment"] = {"name": "arithmetic"}
    values["sampling"] = {
        "temperature": 1.0,
        "group_size": 2,
        "prompts_per_rollout": 1,
        "tokens_max": 3,
    }
    values["committee"] |= {"size": 1, "escalated_size": 1}
    values["epochs"] = {"seconds": 2.0, "record_epochs": 30, "refresh_epochs": 5}
    return tomlkit.dumps(values)


def found_run(directory: Path, run: Path) -> list[str]:
    """Return the command that founds the run."""
    given = {"model": directory / "model", "recipe": directory / "recipe.toml", "out": run}
    options = [part for name, path in given.items() for part in (f"--{name}", str(path))]
    options += ["--uncalibrated", "--no-trial"]
    return [*PRIME_NODE, "run", "create", *options, "--validators", "1"]


# Processes measured from outside


@dataclass(slots=True)
class Memory:
    """Peak memory of a process in MB; the last two are sampled."""

    rss: float = 0.0
    anonymous: float = 0.0
    pss: float = 0.0

    def look(self, pid: int, *, proportional: bool) -> None:
        """Update from a process's ``/proc`` entry; do nothing if it has ended.

        Proportional memory needs a walk over all pages, which keeps a core busy for long at
        gigabytes.
        """
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            self.rss = max(self.rss, _megabytes("VmHWM", status))
            self.anonymous = max(self.anonymous, _megabytes("RssAnon", status))
            if proportional:
                now = Path(f"/proc/{pid}/smaps_rollup").read_text()
                self.pss = max(self.pss, _megabytes("Pss", now))


def _megabytes(name: str, text: str) -> float:
    line = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return round(int(line[1]) * 1024 / 1e6, 1) if line else 0.0


class Process:
    """A ``prime-node`` and its children, with memory sampled until it ends."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        self._began = time.time()
        with log.open("wb") as file:
            self._popen = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        self._sampler = threading.Thread(target=self._sample)
        self.memory: dict[str, Memory] = {"itself": Memory()}
        self._sampler.start()

    def _sample(self) -> None:
        while self._popen.poll() is None:
            self.memory["itself"].look(self._popen.pid, proportional=True)
            with suppress(psutil.Error):
                for child in psutil.Process(self._popen.pid).children(recursive=True):
                    name = "p2pd" if child.name() == "p2pd" else "engine"
                    self.memory.setdefault(name, Memory()).look(child.pid, proportional=False)
            time.sleep(SAMPLE_SECONDS)

    def wait(self) -> float:
        """Wait for its end and return the seconds; raises ``RuntimeError`` on a failure."""
        if self._popen.wait(STAGE_SECONDS):
            raise RuntimeError(self._log.read_text()[-2000:])
        self._sampler.join()
        return round(time.time() - self._began, 2)

    def stop(self) -> None:
        """Stop it; unfinished work does not matter."""
        self._popen.terminate()
        try:
            self._popen.wait(60)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        self._sampler.join()


class Node(Process):
    """A running node; its log is a file of JSON lines."""

    def __init__(self, data_dir: Path, roles: str, joining: list[str]) -> None:
        self._data_dir = data_dir
        command = [*PRIME_NODE, "--role", roles, "--data-dir", str(data_dir), *joining]
        common = ["--host", "127.0.0.1", "--api-port", "0", "--log-format", "json"]
        super().__init__([*command, *common], data_dir.with_suffix(".log"))

    def until(self, event: str) -> dict[str, Any]:
        """Wait for the first log line of an event; ``after`` is its time since the start."""
        ends_at = time.monotonic() + STAGE_SECONDS
        while time.monotonic() < ends_at and self._popen.poll() is None:
            for line in self.lines():
                if line["message"] == event:
                    at = datetime.fromisoformat(line["timestamp"]).timestamp()
                    return {**line, "after": round(at - self._began, 2)}
            time.sleep(SAMPLE_SECONDS)
        raise RuntimeError(f"{self._data_dir}: no {event!r}: {self._log.read_text()[-2000:]}")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield its log lines."""
        for line in self._log.read_text().splitlines():
            with suppress(ValueError):
                yield json.loads(line)

    def stalls(self) -> list[dict[str, Any]]:
        """Return its log lines about stalls of the event loop."""
        shown = ("seconds", "computed_seconds", "waited_for_core_seconds", "where", "untold_before")
        found = [line for line in self.lines() if line["message"] == "event loop stalled"]
        return [{key: line[key] for key in shown} for line in found]

    def status(self) -> dict[str, Any]:
        """Return its ``/status``."""
        port = json.loads((self._data_dir / "api.json").read_text())["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


if __name__ == "__main__":
    main()
