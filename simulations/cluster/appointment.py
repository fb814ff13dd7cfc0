"""Role assignment of adversaries: the machines of a scenario that are dishonest, and the times."""

from collections.abc import Callable, Mapping

from protocol.core.rng import Rng
from simulations.cluster.machine import SimMachine
from simulations.scenario.plans import Adversaries, RoleName
from simulations.scenario.scenario import Scenario

AddUntrustedPeer = Callable[[RoleName], SimMachine]
"""Makes a machine in addition to the scenario's nodes."""


def appoint(
    scenario: Scenario,
    machines: Mapping[str, SimMachine],
    add_untrusted_peer: AddUntrustedPeer,
    rng: Rng,
) -> None:
    """Assign the planned behaviours to machines, and make the additional machines."""
    for number, plan in enumerate(scenario.adversaries):
        if plan.per_node is not None:
            count = round(plan.per_node * scenario.nodes.total)
            chosen = [add_untrusted_peer(plan.role) for _ in range(count)]
        else:
            chosen = _drawn(plan, machines, rng.child(f"adversaries/{number}"))
        for machine in chosen:
            machine.behaviour = plan.behaviour
            machine.joins_at = 60 * plan.join_minute
            machine.acts_from = 60 * plan.from_minute
            if plan.until_minute is not None:
                machine.acts_until = 60 * plan.until_minute


def _drawn(plan: Adversaries, machines: Mapping[str, SimMachine], rng: Rng) -> list[SimMachine]:
    """Return the machines that a plan names, or draw them from the honest ones of its role."""
    there = [machine for machine in machines.values() if machine.role == plan.role]
    honest = [machine for machine in there if not machine.behaviour]
    count = plan.count if plan.count is not None else round((plan.share or 0) * len(there))
    named = [machine for machine in honest if machine.name in plan.names]
    return named if plan.names else rng.sample(honest, count)
