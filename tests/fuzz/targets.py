"""All targets, by name."""

from tests.fuzz import documents, http, outside, sequences, signed, streams, weights
from tests.fuzz.target import Target

_MODULES = (documents, signed, weights, outside, sequences, streams, http)

TARGETS: dict[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
