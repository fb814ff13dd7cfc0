"""Councils, coalitions and unsigned pages for the benchmarks of trust.

Draws, checks and ranks are the protocol's own. Signatures and proofs are stand-ins where only the
draw counts: ``check_page`` takes the check of a proof as an argument, as it does in the simulator.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb, sqrt
from pathlib import Path

from protocol.consensus.council import CheckedPage, Council, PageRules, check_page
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core.crypto import SIGNATURE_BYTES, Identity, digest
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, RunId
from protocol.core.vrf import PROOF_BYTES
from protocol.messages import Page, RolloutCommit, Signed, with_signature
from protocol.run.manifest import Genesis, RunManifest
from protocol.run.sections import CommitteeSection
from protocol.run.toml import load_recipe

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
PROOF = bytes(PROOF_BYTES)
SIGNATURE = bytes(SIGNATURE_BYTES)


@cache
def identity(name: str) -> Identity:
    """Return the key of a name."""
    return Identity(digest(name.encode()))


def manifest_of(members: int, size: int = 3, escalated: int = 7) -> RunManifest:
    """Return a run whose genesis council has ``members`` keys."""
    recipe = load_recipe(RECIPE.read_text())
    sizes = CommitteeSection(
        size=size, escalated_size=escalated, escalate_after_epochs=10, expire_after_epochs=60
    )
    genesis = Genesis(
        creator=identity("creator").peer_id,
        created_at=1_700_000_000,
        policy=digest(b"policy").hex(),
        trainers=(identity("trainer").peer_id,),
        validators=tuple(identity(f"member {n}").peer_id for n in range(members)),
    )
    return RunManifest(**{**dict(recipe), "committee": sizes, "genesis": genesis})


def commit_of(run_id: RunId, body: bytes, epoch: int) -> Signed[RolloutCommit]:
    """Return a commit of a worker outside the council, with a stand-in for its signature."""
    commit = RolloutCommit(
        epoch=epoch,
        version=0,
        checkpoint=digest(b"checkpoint"),
        slot=0,
        body=body,
        body_bytes=100,
        sequences=4,
        tokens=10,
    )
    return with_signature(commit, run_id, identity("worker").peer_id, SIGNATURE)


def rules_of(manifest: RunManifest) -> PageRules:
    """Return the constants of the run's pages."""
    rules = manifest.council
    return PageRules(
        manifest.run_id,
        rules.recovery_epochs,
        rules.revealers,
        rules.seats_max,
        rules.era_epochs,
    )


def simulated_output(peer: PeerId, alpha: bytes, _proof: bytes) -> bytes:
    """Return what stands in for the random output of a key: equally unknown to others."""
    return digest(peer.encode() + alpha)


class Draws:
    """Pages of a council, and its members in the order in which they join the coalition.

    A coalition of ``f`` members is the first ``f`` of the order. So one draw gives the result for
    every share.
    """

    def __init__(self, manifest: RunManifest, seed: int) -> None:
        self.rules, self.rng = rules_of(manifest), Rng(digest(b"coalition %d" % seed))
        genesis = [PeerId(peer) for peer in manifest.genesis.validators]
        self.tree = PageTree(genesis, self.rules, lambda *_: True, simulated_output, 0)
        self.council: Council = self.tree.council
        order = self.rng.shuffled(self.council.members)
        self.joins = {peer: place for place, peer in enumerate(order)}

    def parent(self, epoch: int) -> PageNode:
        """Return a page of an epoch with a random beacon."""
        return replace(self.tree.root, beacon=Digest(self.rng.bytes(32)), epoch=epoch)

    def child(
        self,
        parent: PageNode,
        epoch: int,
        silent: frozenset[PeerId],
        listed: tuple[bytes, ...] = (),
    ) -> PageNode:
        """Return the page of an epoch that lists commits.

        The drawn members contribute to its beacon, except ``silent``.
        """
        council, seed = parent.council, parent.beacon
        revealers = council.revealers(seed, epoch, self.rules.revealers)
        page = Page(
            epoch=epoch,
            council=council.seat,
            parent=parent.digest,
            seed=seed,
            final_epoch=parent.shown_epoch,
            reveals=tuple(b"" if peer in silent else PROOF for peer in revealers),
            commits=listed,
        )
        proposer = council.proposer(seed, epoch)
        signed = with_signature(page, self.rules.run_id, proposer, SIGNATURE)
        checked = check_page(signed, council, self.rules, simulated_output)
        assert isinstance(checked, CheckedPage), checked
        return parent.child(checked, self.rules)

    def colluding_revealers(self, parent: PageNode, epoch: int, coalition: int) -> list[PeerId]:
        """Return the drawn members of a coalition; it sees the other reveals before it sends."""
        drawn = parent.council.revealers(parent.beacon, epoch, self.rules.revealers)
        return [peer for peer in drawn if self.joins[peer] < coalition]

    def choices(self, parent: PageNode, epoch: int, coalition: int) -> Iterator[PageNode]:
        """Yield the pages among which a coalition chooses by withholding its reveals."""
        for silent in subsets(self.colluding_revealers(parent, epoch, coalition)):
            yield self.child(parent, epoch, silent)


def subsets(peers: list[PeerId]) -> Iterator[frozenset[PeerId]]:
    """Yield all sets of some of the peers, the empty one first."""
    for count in range(len(peers) + 1):
        yield from map(frozenset, combinations(peers, count))


# Formulas


def drawn(members: int, coalition: int, seats: int, colluding: int) -> float:
    """Return the probability that a draw of ``seats`` members has ``colluding`` of a coalition."""
    honest = members - coalition
    ways = comb(coalition, colluding) * comb(honest, seats - colluding)
    return ways / comb(members, seats)


def beacons(revealers: int, colluding: int) -> int:
    """Return the number of drawing pages that a coalition can choose from."""
    honest = revealers - colluding
    sent = range(colluding + 1)
    return sum(comb(colluding, k) for k in sent if 2 * (honest + k) >= revealers)


def of_choices(chance: float, members: int, coalition: int, revealers: int) -> float:
    """Return the chance of an event of one draw when a coalition chooses the beacon."""
    return sum(
        drawn(members, coalition, revealers, m) * (1 - (1 - chance) ** beacons(revealers, m))
        for m in range(revealers + 1)
    )


def sigmas(share: float, chance: float, trials: int) -> float:
    """Return how many standard deviations a simulated share differs from its chance.

    A deviation is at least one trial: chances far below one in ``trials`` are not normal.
    """
    deviation = max(sqrt(chance * (1 - chance) / trials), 1 / trials)
    return round(abs(share - chance) / deviation, 2)
