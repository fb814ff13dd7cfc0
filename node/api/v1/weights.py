"""Versions of a run, their downloads, and their distribution forest."""

from collections.abc import Callable
from dataclasses import dataclass

from node.api.arrivals_observer import download_statuses, durations_statuses, receiver_statuses
from node.api.observer import Observer
from node.api.v1.answers import EncodingDetail, Forest, VersionDetail, WeightsPage
from node.api.v1.queries import WeightsQuery
from node.weights.download_progress import SECONDS_BOUNDS
from protocol.messages import CheckpointManifest, Signed
from protocol.shardcast.forest import ForestMembers, tree

VERSIONS_SHOWN = 60
FOREST_MEMBERS_MAX = 2_000
"""Limit of drawn forests; a larger response would be too large for a page."""


@dataclass(frozen=True, slots=True)
class WeightsReader:
    """Reads the weights of one node; ``forest`` returns the members of forests."""

    observer: Observer
    forest: Callable[[], ForestMembers]

    def page(self, query: WeightsQuery) -> WeightsPage:
        """Return the newest versions, and the forest of the requested one."""
        observer, ledger = self.observer, self.observer.context.replica.ledger
        monotonic, now = observer.monotonic(), observer.context.ports.clock.now()
        version = ledger.chain.version if query.version < 0 else query.version
        manifest, members = ledger.chain.get(version), self.forest()
        newest = [entry.manifest for entry in ledger.chain.checkpoints[-VERSIONS_SHOWN:]]
        forest, note = None, ""
        if manifest is None:
            note = f"Version {version} is not known to this node." if version >= 0 else ""
        elif len(members) > FOREST_MEMBERS_MAX:
            note = f"The forest has {len(members)} members and is not drawn."
        else:
            forest = self._forest(manifest, members)
        return WeightsPage(
            tuple(map(self._version, reversed(newest))),
            download_statuses(observer.arrivals, monotonic, now),
            receiver_statuses(observer.exchange.sent, monotonic),
            durations_statuses(observer.arrivals),
            SECONDS_BOUNDS,
            forest,
            note,
        )

    def _version(self, manifest: Signed[CheckpointManifest]) -> VersionDetail:
        message = manifest.message
        forms = [EncodingDetail("file", -1, message.total_bytes)]
        for encoding in message.encodings:
            form = "patch" if encoding.base else "planes"
            forms.append(EncodingDetail(form, encoding.base_version, encoding.total_bytes))
        return VersionDetail(
            version=message.version,
            at=message.created_at / 1000,
            publisher=manifest.signer,
            term=message.term,
            digest=manifest.digest.hex(),
            policy=message.policy.hex(),
            reward=message.reward_mean / 1e6,
            commits=len(message.batch),
            forms=tuple(forms),
            here=self.observer.policies.get(message.version) is not None,
        )

    def _forest(self, manifest: Signed[CheckpointManifest], members: ForestMembers) -> Forest:
        """Return the current trees of a version with its publisher as root."""
        rules, root = self.observer.context.replica.manifest.shardcast, manifest.signer
        names = [member.peer for member in members]
        if root not in names:
            names.append(root)
        places = {peer: place for place, peer in enumerate(names)}
        rates = {member.peer: member.upload_bytes_per_second for member in members}
        parents = []
        for stripe in range(rules.stripes):
            line = tree(members, root, manifest.digest, stripe, rules.stripes, rules.fanout)
            above = [line.parents.get(peer) for peer in names]
            parents.append(
                tuple(-2 if one is None else -1 if one == root else places[one] for one in above)
            )
        return Forest(
            manifest.message.version,
            root,
            rules.fanout,
            tuple(names),
            tuple(rates.get(peer, 0) for peer in names),
            tuple(parents),
        )
