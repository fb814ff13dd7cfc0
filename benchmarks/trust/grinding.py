"""Grinding by a coalition of council members, and its early knowledge of beacons.

    python benchmarks/trust/grinding.py --json

A worker of the coalition signs many commits that differ in their body, and wants one whose first
committee is the coalition. The next page lists the chosen ones, and the page after it draws their
committees. The coalition of a share is the first members of one random order.

Fields of a row:

- ``chosen``: bodies whose first committee would be the coalition by the newest page that it knows;
  each was a false certificate while beacons were hashes of the epoch;
- ``false_certificates``: certificates on those commits that name a page known at that time and
  pass the protocol's check;
- ``later_false``: chosen commits whose first committee by the page that draws it is the coalition
  again; ``later_false_share`` is their share of ``chosen`` (null without any);
- ``formula_false``: the chance of a body that nobody chose. If both agree (``sigmas``), grinding
  gains nothing;
- ``known_early_share``: share of epochs in which only members of the coalition are drawn to reveal:
  it knows the beacon while commits are open; ``formula_known_early`` is exact;
- ``known_early_silent_share``, ``formula_known_early_silent``: the same while some honest members
  (``--silent``) are down: at least half of the drawn members reveal, and all of them collude;
- ``choices_mean``, ``choices_max``: pages that the coalition can choose from in an epoch by
  withholding reveals, after it has seen those of the others;
- ``false_withheld``, ``formula_false_withheld``: chance of a false certificate on one fixed commit
  if it does so. It tries again in the next epoch if too few members revealed, or if its own member
  is the first proposer. That one publishes no page, or one so late that the votes split between
  it and the page of the second proposer.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from math import comb
from typing import Any

from councils import SHARES, SIGNATURE, Draws, beacons, commit_of, drawn, manifest_of, sigmas

from protocol.consensus.committee import Committee, draw
from protocol.consensus.page_node import PageNode
from protocol.consensus.verdict_pool import Outcome, VerdictTable
from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.messages import (
    ACCEPTED,
    WITNESSES,
    RolloutCommit,
    Signed,
    Verdict,
    with_signature,
)
from protocol.run.manifest import RunManifest

EVERYBODY: frozenset[Any] = frozenset()
"""No silent members."""


def first_committee(
    manifest: RunManifest, page: PageNode, commit: Signed[RolloutCommit]
) -> Committee:
    """Return the committee of a commit by a page."""
    committee = draw(manifest, page, commit)
    assert committee is not None
    return committee


def needed(draws: Draws, committee: Committee) -> int:
    """Return the members of the smallest coalition that is the first committee."""
    return 1 + max(draws.joins[peer] for peer in committee.first)


class Grinding:
    """Counts over all ground bodies, by coalition."""

    def __init__(self, manifest: RunManifest, draws: Draws, coalitions: list[int]) -> None:
        self._manifest, self._draws, self._coalitions = manifest, draws, coalitions
        self._table = VerdictTable(manifest, draws.tree)
        self.chosen, self.accepted, self.later = Counter[int](), Counter[int](), Counter[int]()

    def run(self, bodies: int, bodies_each: int) -> None:
        """Grind ``bodies_each`` bodies in each epoch."""
        known = self._draws.child(self._draws.tree.root, 0, EVERYBODY)
        for first in range(0, bodies, bodies_each):
            chosen = []
            for number in range(first, min(first + bodies_each, bodies)):
                body = digest(b"%d" % number)
                commit = commit_of(self._draws.rules.run_id, body, known.epoch)
                committee = first_committee(self._manifest, known, commit)
                worst = needed(self._draws, committee)
                if worst <= max(self._coalitions):
                    chosen.append((worst, commit, self.passes(commit, committee)))
            listed = tuple(commit.digest for _, commit, _ in chosen)
            listing = self._draws.child(known, known.epoch + 1, EVERYBODY, listed)
            drawing = self._draws.child(listing, listing.epoch + 1, EVERYBODY)
            for worst, commit, passes in chosen:
                assert commit.digest in drawing.drawn
                later = needed(self._draws, first_committee(self._manifest, drawing, commit))
                for coalition in self._coalitions:
                    if worst <= coalition:
                        self.chosen[coalition] += 1
                        self.accepted[coalition] += passes
                        self.later[coalition] += later <= coalition
            drawing.parent = None
            known = drawing

    def passes(self, commit: Signed[RolloutCommit], committee: Committee) -> bool:
        """Return whether the first committee's acceptances make a certificate."""
        verdict = Verdict(
            commit=commit.digest,
            page=committee.page.digest,
            nonce=bytes(32),
            accept=True,
            reason=ACCEPTED,
            witness=(0,) * WITNESSES,
            replays=(0,) * WITNESSES,
        )
        verdicts = tuple(
            with_signature(verdict, self._draws.rules.run_id, peer, SIGNATURE)
            for peer in committee.first
        )
        outcome = Outcome(accepted=True, escalated=False, verdicts=verdicts)
        certificate = outcome.certificate(commit.digest, committee)
        rank = self._table.rank(certificate, verdicts, commit, committee.page)
        return not isinstance(rank, Fault)


def known_early(
    draws: Draws, coalitions: list[int], silent: int, epochs: int
) -> tuple[Counter[int], Counter[int]]:
    """Return the epochs whose beacon each coalition knows; then those with ``silent`` members."""
    members, count = len(draws.council.members), draws.rules.revealers
    known, known_silent = Counter[int](), Counter[int]()
    for epoch in range(epochs):
        seed = draws.rng.bytes(32)
        places = [draws.joins[peer] for peer in draws.council.revealers(seed, epoch, count)]
        speaking = [place for place in places if place < members - silent]
        for coalition in coalitions:
            known[coalition] += max(places) < coalition
            if 2 * len(speaking) >= count:
                known_silent[coalition] += max(speaking) < coalition
    return known, known_silent


def formula_known_early(members: int, coalition: int, silent: int, revealers: int) -> float:
    """Return the chance that all members that reveal collude, and are enough for a beacon."""
    least = -(-revealers // 2)
    ways = sum(
        comb(coalition, revealing) * comb(silent, revealers - revealing)
        for revealing in range(least, revealers + 1)
    )
    return ways / comb(members, revealers)


def withheld(
    manifest: RunManifest, draws: Draws, coalition: int, trials: int
) -> tuple[float, list[int]]:
    """Return the share of fixed commits with a false certificate, and the choices of each epoch."""
    false, choices = 0, []
    commit = commit_of(draws.rules.run_id, digest(b"body"), 0)
    for _ in range(trials):
        parent = draws.parent(0)
        for epoch in range(1, manifest.committee.expire_after_epochs):
            pages = list(draws.choices(parent, epoch, coalition))
            drawing = [page for page in pages if page.draws]
            choices.append(len(drawing))
            reached = (first_committee(manifest, page, commit) for page in drawing)
            if any(needed(draws, committee) <= coalition for committee in reached):
                false += 1
                break
            proposer = draws.council.proposer(parent.beacon, epoch)
            if len(drawing) == len(pages) and draws.joins[proposer] >= coalition:
                break
    return false / trials, choices


def formula_withheld(chance: float, members: int, coalition: int, revealers: int) -> float:
    """Return the chance of a false certificate by any number of such epochs."""
    reached = again = 0.0
    for colluding in range(revealers + 1):
        probability = drawn(members, coalition, revealers, colluding)
        missed = (1 - chance) ** beacons(revealers, colluding)
        reached += probability * (1 - missed)
        may_stop = 2 * (revealers - colluding) < revealers
        again += probability * missed * (1 if may_stop else coalition / members)
    return reached / (1 - again)


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    manifest = manifest_of(given.members, given.size, given.escalated)
    draws, trials = Draws(manifest, given.seed), given.withheld_trials
    coalitions = [round(share * given.members) for share in SHARES]
    grinding = Grinding(manifest, draws, coalitions)
    grinding.run(given.bodies, given.bodies_each)
    silent = round(given.silent * given.members)
    known, known_silent = known_early(draws, coalitions, silent, given.epochs)
    for coalition in coalitions:
        of = given.members, coalition
        chosen, later = grinding.chosen[coalition], grinding.later[coalition]
        chance = drawn(*of, given.size, given.size)
        false, choices = withheld(manifest, draws, coalition, trials)
        revealers = draws.rules.revealers
        formula = formula_withheld(chance, *of, revealers)
        yield {
            "share": coalition / given.members,
            "chosen": chosen,
            "false_certificates": grinding.accepted[coalition],
            "later_false": later,
            "later_false_share": later / chosen if chosen else None,
            "formula_false": chance,
            "sigmas": sigmas(later / chosen, chance, chosen) if chosen else 0.0,
            "known_early_share": known[coalition] / given.epochs,
            "formula_known_early": formula_known_early(*of, 0, revealers),
            "known_early_silent_share": known_silent[coalition] / given.epochs,
            "formula_known_early_silent": formula_known_early(*of, silent, revealers),
            "choices_mean": sum(choices) / len(choices),
            "choices_max": max(choices),
            "false_withheld": false,
            "formula_false_withheld": formula,
            "sigmas_withheld": sigmas(false, formula, trials),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--escalated", type=int, default=7)
    parser.add_argument("--bodies", type=int, default=1_000_000)
    parser.add_argument("--bodies-each", type=int, default=1000, help="bodies of an epoch")
    parser.add_argument("--epochs", type=int, default=500_000, help="draws of revealers")
    parser.add_argument("--silent", type=float, default=0.2, help="share of silent members")
    parser.add_argument("--withheld-trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = list(measured(given))
    if given.json:
        settings = {key: value for key, value in vars(given).items() if key != "json"}
        print(json.dumps({**settings, "rows": rows}, indent=2))
        return
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
