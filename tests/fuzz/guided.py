"""Coverage-guided fuzzing with atheris (libFuzzer).

The initial corpus comes from the format-aware mutators. libFuzzer ends its process itself, so the
findings are written to a file as it runs.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.target import INPUT_BYTES_MAX

WRITE_EVERY = 500
RUNS_MAX = 1 << 31
"""libFuzzer treats a larger number as no limit."""

PACKAGES = ("protocol", "node", "roles")
MODULES = ("documents", "signed", "weights", "outside")
"""Modules of the targets that need no daemon: guided runs cover one decoder."""


def is_there() -> bool:
    try:
        import atheris  # noqa: F401, PLC0415 - an extra
    except ImportError:
        return False
    return True


def instrumented(name: str) -> Any:
    """Return a target, imported with atheris' coverage instrumentation.

    Only the imports of its module are instrumented: the whole daemon takes a minute.
    """
    import atheris  # noqa: PLC0415 - an extra

    for module in MODULES:
        with atheris.instrument_imports(include=list(PACKAGES)):
            targets = importlib.import_module(f"tests.fuzz.{module}").TARGETS
        found = next((target for target in targets if target.name == name), None)
        if found is not None:
            return found
    raise LookupError(name)


def fuzz(run: Any, inputs: int, seconds: float, seed: int, result: Path) -> None:
    """Fuzz until the limit of inputs or of time; does not return."""
    import atheris  # noqa: PLC0415 - an extra

    rng, began = Random(f"{seed}/{run.target.name}/guided"), time.perf_counter()
    spent = time.process_time()

    def one(data: bytes) -> None:
        run.take(data[:INPUT_BYTES_MAX])
        found = run.found
        found.seconds = time.process_time() - spent
        ends = found.inputs >= inputs or time.perf_counter() - began >= seconds
        if found.inputs % WRITE_EVERY == 0 or ends:
            result.write_text(json.dumps(found.as_json()))

    def mutated(data: bytes, bytes_max: int, number: int) -> bytes:
        rng.seed(number)
        if rng.random() < 0.3:
            return run.session.draw(rng)[:bytes_max]
        return bytes(atheris.Mutate(data, bytes_max))

    corpus = result.with_suffix(".corpus")
    corpus.mkdir()
    for number in range(200):
        (corpus / str(number)).write_bytes(run.session.draw(rng)[:INPUT_BYTES_MAX])
    options = [
        f"-runs={inputs if inputs < RUNS_MAX else -1}",
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed + 1}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-len_control=0",
        "-verbosity=0",
        "-timeout=60",
        "-rss_limit_mb=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutated)
    atheris.Fuzz()
