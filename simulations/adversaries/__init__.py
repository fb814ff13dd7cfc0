"""Dishonest nodes of simulations: the real daemon with one port replaced, role code untouched.

``BEHAVIOURS`` says what there is and for which role. Each does one thing wrong and is honest
otherwise, so that each shows what one check is worth.
"""

from dataclasses import dataclass

from simulations.adversaries import flooding, inference, relays, validators
from simulations.cluster.machine import Twist
from simulations.scenario.plans import ALL_ROLES, RoleName

__all__ = ["BEHAVIOURS", "TWISTS", "Dishonesty", "flaw"]


@dataclass(frozen=True, slots=True)
class Dishonesty:
    """A behaviour, the roles that it is for, and what it does in a line."""

    twist: Twist
    roles: tuple[RoleName, ...]
    description: str


def _of(role: RoleName, twist: Twist, description: str) -> Dishonesty:
    return Dishonesty(twist, (role,), description)


BEHAVIOURS: dict[str, Dishonesty] = {
    "stale-weights": _of(
        "inference",
        inference.stale_weights,
        "generates with the policy before the one it claims",
    ),
    "other-weights": _of(
        "inference",
        inference.other_weights,
        "generates with weights of its own",
    ),
    "edited-tokens": _of(
        "inference",
        inference.edited_tokens,
        "changes a token of each sequence after it was sampled",
    ),
    "forged-rewards": _of(
        "inference",
        inference.forged_rewards,
        "claims that right answers are wrong and wrong ones right",
    ),
    "forged-proofs": _of(
        "inference",
        inference.forged_proofs,
        "sends random bytes for proofs",
    ),
    "withheld-body": _of(
        "inference",
        inference.withheld_body,
        "commits to rollouts and shows them to nobody",
    ),
    "accept-everything": _of(
        "validator",
        validators.accept_everything,
        "accepts whatever can be read, without checking it",
    ),
    "reject-everything": _of(
        "validator",
        validators.reject_everything,
        "rejects whatever can be read, without checking it",
    ),
    "silent": _of(
        "validator",
        validators.silent,
        "checks nothing, sends no verdict and takes none",
    ),
    "two-verdicts": _of(
        "validator",
        validators.two_verdicts,
        "signs accept and reject, and shows each to half of its peers",
    ),
    "bad-bytes": _of(
        "relay",
        relays.bad_bytes,
        "serves wrong bytes of weights and of their index",
    ),
    "stall": _of(
        "relay",
        relays.stall,
        "takes requests and answers with nothing, or with a byte a second",
    ),
    "flood": Dishonesty(
        flooding.flood,
        ALL_ROLES,
        "gossips junk and repeats, and asks for far more than it takes",
    ),
}

TWISTS: dict[str, Twist] = {name: item.twist for name, item in BEHAVIOURS.items()}
"""What ``World`` and ``run_plan`` take."""


def flaw(behaviour: str, role: RoleName) -> str:
    """Return what is wrong with a behaviour of a role, naming the key; empty when nothing is."""
    known = BEHAVIOURS.get(behaviour)
    if known is None:
        return f"behaviour: unknown {behaviour!r}; there are {', '.join(BEHAVIOURS)}"
    if role not in known.roles:
        return f"role: {behaviour!r} is for {' or '.join(known.roles)} nodes, not {role}"
    return ""
