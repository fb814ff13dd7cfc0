"""All that is fuzzed, by name."""

from benchmarks.fuzzing import documents, http, outside, sequences, signed, streams, weights
from benchmarks.fuzzing.target import Target

_MODULES = (documents, signed, weights, outside, sequences, streams, http)

TARGETS: dict[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
