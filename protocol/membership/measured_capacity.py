"""Capacity of members as measured by others: reachability, upload rate and reputation.

Keys are free, and so are their claims. So several members dial each member back and receive a
sample; they publish the result in their records. Every node takes a majority and the upper quartile
of these reports, which all nodes hold alike. To fake one member's capacity an attacker needs as
many trusted keys as there are honest reporters, and each key reports on at most
``OBSERVATIONS_MAX`` members.
"""

from collections.abc import Callable, Sequence

from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import PeerId, rate_of_class
from protocol.membership.roster import Member
from protocol.run.manifest import RunManifest
from protocol.shardcast.forest import ForestMember, ForestMembers

OBSERVERS_MIN = 3
"""Required reports by trusted members, or all if there are fewer: a guess."""

UNOBSERVED_SHARE = 8
"""A member with too few reports counts at most 1/8 of the maximum rate: a guess."""

AGE_EPOCHS = 8
"""Epochs for which a reporter knows an untrusted key before it reports on it: a guess. It keeps new
keys out of the forest of the version that they want to delay."""


def forest_members(
    live: Sequence[Member],
    manifest: RunManifest,
    trusted: Callable[[PeerId], bool],
    counts: Callable[[PeerId], bool],
) -> ForestMembers:
    """Return the live members with their measured capacity.

    ``trusted`` tells whether a peer has reputation, ``counts`` whether a key's probation is over; a
    key on probation has no children.

    A member may have children if it has enough reports and more than half of them reached it. Its
    rate is the upper quartile of those reports, at most the manifest's maximum and its own limit. A
    genesis key's own claim counts until it has enough reports.
    """
    reputable = {member.peer: trusted(member.peer) for member in live}
    said = _said(live, reputable)
    observers = sum(reputable.values())
    most = manifest.shardcast.upload_bytes_per_second_max
    found = []
    for member in live:
        peer, message = member.peer, member.record.message
        enough = min(OBSERVERS_MIN, observers - reputable[peer])
        classes = said[peer]
        if enough and len(classes) >= enough:
            reached = sorted(number for number in classes if number)
            reachable = 2 * len(reached) > len(classes)
            rate = min(most, rate_of_class(_upper_quartile(reached)))
        else:
            reachable = manifest.is_of_genesis(peer)
            rate = most // UNOBSERVED_SHARE
        found.append(
            ForestMember(
                peer,
                min(rate, message.upload_bytes_per_second or rate),
                message.reachable and reachable and counts(peer),
                reputable[peer],
            )
        )
    return ForestMembers(found)


def _said(live: Sequence[Member], reputable: dict[PeerId, bool]) -> dict[PeerId, list[int]]:
    """Return the reports of trusted members on each live member except themselves."""
    said: dict[PeerId, list[int]] = {member.peer: [] for member in live}
    peers = {public_key_from_peer_id(peer): peer for peer in said}
    for member in live:
        if not reputable[member.peer]:
            continue
        message = member.record.message
        for key, number in zip(message.witnessed, message.upload_classes, strict=True):
            peer = peers.get(key)
            if peer is not None and peer != member.peer:
                said[peer].append(number)
    return said


def _upper_quartile(classes: Sequence[int]) -> int:
    """Return the class that a quarter of the sorted classes reach; of 4 to 7 the last but one."""
    return classes[len(classes) - 1 - len(classes) // 4] if classes else 0
