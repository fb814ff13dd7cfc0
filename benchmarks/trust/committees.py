"""Committees under collusion: false certificates, honest rollouts rejected or left undecided.

    python benchmarks/trust/committees.py --json

A council of 100 members checks one false and one honest rollout in each trial. The coalition
accepts the false one and rejects the honest one; honest members do the opposite. Each side collects
the verdicts of its own members, so the other side's are withheld. ``VerdictPool`` decides,
``check_certificate`` checks both certificates, and ``outcome_rank`` picks the one that counts. The
committee's page is drawn anew in each trial. Certificates may hold more verdicts here than on the
wire (``VERDICTS_MAX``), for the committee of 27.

Fields of a row; ``formula_*`` is exact (hypergeometric), ``simulated_*`` a share of the trials:

- ``false``: the false rollout is certified;
- ``honest_rejected``: the honest rollout is rejected, which can cost its worker its place;
- ``honest_undecided``: no certificate on the honest rollout, because the coalition's verdicts are
  missing; the rollout expires;
- ``false_withheld``, ``honest_rejected_withheld``: the same when the coalition sees all honest
  reveals and withholds those of its own that give it the best beacon (``--withheld-trials``);
- ``sigmas``: greatest difference of simulation and formula in the row, in standard deviations.

``councils`` has the chance that a coalition gets more than a third of a council's seats, such that
two quorums could notarise conflicting pages. Each seat is drawn independently; ``share`` is the
coalition's share of the lots.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import comb
from typing import Any

from councils import (
    SHARES,
    SIGNATURE,
    Draws,
    commit_of,
    drawn,
    manifest_of,
    of_choices,
    sigmas,
    subsets,
)

from protocol.consensus.committee import Committee, check_certificate, draw, outcome_rank
from protocol.consensus.council import Council
from protocol.consensus.page_node import PageNode
from protocol.consensus.verdict_pool import VerdictPool
from protocol.core.crypto import digest
from protocol.core.types import Digest, PeerId
from protocol.messages import (
    ACCEPTED,
    WITNESSES,
    Certificate,
    RolloutCommit,
    Signed,
    Verdict,
    with_signature,
)
from protocol.run.manifest import RunManifest

SIZES = ((2, 3), (3, 7), (3, 9), (9, 27))
"""First and larger committee."""

SEATS = (100, 200)
"""Councils whose draw is computed."""

ANY_PAGE = bytes(32)
"""Page of every verdict here: the checks only compare it."""

Outcomes = tuple[bool, bool, bool]
"""False certified, honest rejected, honest undecided."""

SIMPLE = ("false", "honest_rejected", "honest_undecided")
WITHHELD = ("false_withheld", "honest_rejected_withheld")


def formula(members: int, coalition: int, size: int, escalated: int) -> list[float]:
    """Return the chances of the three outcomes of a random committee."""
    quorum, rest = -(-2 * escalated // 3), escalated - size
    found = [0.0, 0.0, 0.0]
    for first in range(min(size, coalition) + 1):
        chance = drawn(members, coalition, size, first)
        for more in range(min(rest, coalition - first) + 1):
            both = chance * drawn(members - size, coalition - first, rest, more)
            colluding = first + more
            found[0] += both * (first == size or colluding >= quorum)
            found[1] += both * (first > 0 and colluding >= quorum)
            found[2] += both * (first > 0 and escalated - quorum < colluding < quorum)
    return found


def unsafe_council(seats: int, share: float) -> float:
    """Return the chance of all seats that two quorums share at least: they can then contradict."""
    council = Council(b"", tuple(PeerId(str(seat)) for seat in range(seats)))
    shared = 2 * council.quorum - seats
    return sum(
        comb(seats, bad) * share**bad * (1 - share) ** (seats - bad)
        for bad in range(shared, seats + 1)
    )


@dataclass
class Rules:
    """The protocol's decision for committees of one pair of sizes."""

    manifest: RunManifest
    size: int
    escalated_size: int
    commit: Signed[RolloutCommit]
    verdicts: dict[tuple[PeerId, bool], Signed[Verdict]] = field(default_factory=dict)
    known: dict[tuple[bool, ...], Outcomes] = field(default_factory=dict)
    """Outcomes by the colluding ranks: ranks only compare, so nothing else matters."""

    def outcomes(self, page: PageNode, joins: dict[PeerId, int], coalition: int) -> Outcomes:
        """Return what a page's committee decides."""
        drawn_by_run = draw(self.manifest, page, self.commit)
        assert drawn_by_run is not None
        committee = replace(drawn_by_run, first_size=self.size, escalated_size=self.escalated_size)
        colluding = tuple(joins[peer] < coalition for peer in committee.escalated)
        found = self.known.get(colluding)
        if found is None:
            false = self._decision(committee, colluding, colluder_accepts=True)
            honest = self._decision(committee, colluding, colluder_accepts=False)
            found = self.known[colluding] = (false is True, honest is False, honest is None)
        return found

    def _decision(
        self, committee: Committee, colluding: tuple[bool, ...], *, colluder_accepts: bool
    ) -> bool | None:
        """Return the outcome of the certificate that counts, None without any."""
        certificates = []
        for colludes in (False, True):
            pool = VerdictPool()
            for peer, is_colluder in zip(committee.escalated, colluding, strict=True):
                if is_colluder is colludes:
                    pool.add(self._verdict(peer, accept=colluder_accepts is colludes))
            outcome = pool.outcome(committee)
            if outcome is None:
                continue
            certificate = Certificate.model_construct(
                commit=self.commit.digest,
                page=ANY_PAGE,
                escalated=outcome.escalated,
                accepted=outcome.accepted,
                verdicts=tuple(verdict.envelope for verdict in outcome.verdicts),
                dissents=(),
            )
            fault = check_certificate(certificate, outcome.verdicts, committee)
            assert fault is None, fault
            rank = outcome_rank(certificate, outcome.verdicts, committee)
            certificates.append((rank, certificate.accepted))
        return min(certificates)[1] if certificates else None

    def _verdict(self, peer: PeerId, *, accept: bool) -> Signed[Verdict]:
        known = self.verdicts.get((peer, accept))
        if known is None:
            verdict = Verdict(
                commit=self.commit.digest,
                page=ANY_PAGE,
                nonce=bytes(32),
                accept=accept,
                reason=ACCEPTED if accept else "computation",
                witness=(0,) * WITNESSES,
                replays=(0,) * WITNESSES,
            )
            known = with_signature(verdict, self.manifest.run_id, peer, SIGNATURE)
            self.verdicts[peer, accept] = known
        return known


def simulated(
    rules: list[Rules], draws: Draws, coalitions: list[int], trials: int
) -> dict[tuple[int, int], list[float]]:
    """Return the shares of the outcomes by rules and coalition, every reveal being sent."""
    counts = {key: [0, 0, 0] for key in cells(rules, coalitions)}
    for _ in range(trials):
        beacon = Digest(draws.rng.bytes(32))
        page = replace(draws.tree.root, beacon=beacon, epoch=1, draws=True)
        for index, coalition in cells(rules, coalitions):
            found = rules[index].outcomes(page, draws.joins, coalition)
            counts[index, coalition] = [
                a + b for a, b in zip(counts[index, coalition], found, strict=True)
            ]
    return {key: [count / trials for count in found] for key, found in counts.items()}


def simulated_withheld(
    rules: list[Rules], draws: Draws, coalitions: list[int], trials: int
) -> dict[tuple[int, int], list[float]]:
    """Return the shares of the trials in which one of a coalition's choices has an outcome."""
    counts = {key: [0, 0] for key in cells(rules, coalitions)}
    for _ in range(trials):
        parent = draws.parent(0)
        drawn_members = draws.colluding_revealers(parent, 1, max(coalitions))
        pages = {silent: draws.child(parent, 1, silent) for silent in subsets(drawn_members)}
        for index, coalition in cells(rules, coalitions):
            own = {peer for peer in drawn_members if draws.joins[peer] < coalition}
            reached = [
                rules[index].outcomes(page, draws.joins, coalition)
                for silent, page in pages.items()
                if page.draws and silent <= own
            ]
            for outcome in range(2):
                counts[index, coalition][outcome] += any(found[outcome] for found in reached)
    return {key: [count / trials for count in found] for key, found in counts.items()}


def cells(rules: list[Rules], coalitions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of rules and coalition."""
    for index in range(len(rules)):
        for coalition in coalitions:
            yield index, coalition


def measured(
    members: int, sizes: list[tuple[int, int]], trials: int, withheld_trials: int, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of all sizes and shares."""
    manifest = manifest_of(members)
    draws = Draws(manifest, seed)
    commit = commit_of(draws.rules.run_id, digest(b"body"), 0)
    rules = [Rules(manifest, *pair, commit) for pair in sizes]
    coalitions = [round(share * members) for share in SHARES]
    simple = simulated(rules, draws, coalitions, trials)
    withheld = simulated_withheld(rules, draws, coalitions, withheld_trials)
    rows = []
    for index, coalition in cells(rules, coalitions):
        size, escalated = sizes[index]
        chances = formula(members, coalition, size, escalated)
        chosen = [
            of_choices(chance, members, coalition, draws.rules.revealers) for chance in chances[:2]
        ]
        row: dict[str, Any] = {"share": coalition / members, "size": size, "escalated": escalated}
        far = []
        for names, expected, found, tried in (
            (SIMPLE, chances, simple[index, coalition], trials),
            (WITHHELD, chosen, withheld[index, coalition], withheld_trials),
        ):
            for name, chance, share in zip(names, expected, found, strict=True):
                row |= {f"formula_{name}": chance, f"simulated_{name}": share}
                far.append(sigmas(share, chance, tried))
        rows.append(row | {"sigmas": max(far)})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--sizes", nargs="+", default=[f"{a}/{b}" for a, b in SIZES])
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--withheld-trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = [(int(a), int(b)) for a, _, b in (text.partition("/") for text in given.sizes)]
    rows = measured(given.members, sizes, given.trials, given.withheld_trials, given.seed)
    councils = [
        {"seats": seats, "share": share, "unsafe": unsafe_council(seats, share)}
        for seats in SEATS
        for share in SHARES
    ]
    if given.json:
        settings = {key: value for key, value in vars(given).items() if key != "json"}
        print(json.dumps({**settings, "rows": rows, "councils": councils}, indent=2))
        return
    for row in [*rows, *councils]:
        print(", ".join(f"{name} {value:.3g}" for name, value in row.items()))


if __name__ == "__main__":
    main()
