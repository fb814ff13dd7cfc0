"""Atheris: libFuzzer, which looks for inputs that reach lines that no other input has reached.

It mutates what our own mutators make, too. It ends its process itself, so what it found is written
to a file while it goes on.
"""

import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzzing.target import INPUT_BYTES_MAX

WRITE_EVERY = 500
PACKAGES = ("protocol", "node", "roles")


def is_there() -> bool:
    """Tell whether atheris is installed."""
    try:
        import atheris  # noqa: F401, PLC0415 - an extra
    except ImportError:
        return False
    return True


def instrumented() -> Any:
    """Return the table of targets, imported so that atheris sees which lines are reached."""
    import atheris  # noqa: PLC0415 - an extra

    with atheris.instrument_imports(include=list(PACKAGES)):
        from benchmarks.fuzzing import targets  # noqa: PLC0415 - only now
    return targets.TARGETS


def fuzz(run: Any, inputs: int, seconds: float, seed: int, result: Path) -> None:
    """Fuzz until there were enough inputs or for long enough; does not return."""
    import atheris  # noqa: PLC0415 - an extra

    rng, began = Random(f"{seed}/{run.target.name}/guided"), time.perf_counter()

    def one(data: bytes) -> None:
        run.take(data[:INPUT_BYTES_MAX])
        found = run.found
        found.seconds = time.perf_counter() - began
        if found.inputs % WRITE_EVERY == 0 or found.inputs >= inputs or found.seconds >= seconds:
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
        f"-runs={inputs}",
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
