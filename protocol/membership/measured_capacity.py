"""What a member can do for others, as others have found: reachability, upload, standing.

A key is free, and so is whatever it says of itself. So a member has itself dialled back by several
others, and sends each a sample; they say in their records what they saw. Here everybody takes of
these words, which all hold alike, a majority and a median. Whoever lies needs as many keys with
standing as there are honest witnesses, for each member that it lies about, and each speaks for
``WITNESSED_MAX`` at most.
"""

from collections.abc import Callable, Sequence

from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import PeerId, rate_of_class
from protocol.membership.roster import Member
from protocol.run.manifest import RunManifest
from protocol.shardcast.forest import ForestMember, ForestMembers

WITNESSES_MIN = 3
"""Members with standing that must have spoken, where there are so many: a guess."""

UNWITNESSED_SHARE = 8
"""Of whom nobody has said enough no more is believed than this part of the most: a guess."""

AGE_EPOCHS = 8
"""For so long a witness has known a key without standing before it speaks for it: a guess, so that
a crowd of keys does not come into the forest with the version that it wants to hold up."""


def forest_members(
    live: Sequence[Member],
    manifest: RunManifest,
    trusted: Callable[[PeerId], bool],
    counts: Callable[[PeerId], bool],
) -> ForestMembers:
    """Return the live members as their witnesses have found them; ``trusted``: ``has_standing``.

    ``counts`` tells whose probation is over; who is on it feeds nobody.

    A member feeds others when enough witnesses have spoken and more than half of them got through
    to it; its rate is the lower median of what these saw, the manifest's most at most, and no more
    than it says itself. Of a key of the genesis its own word will do until enough have spoken.
    """
    standing = {member.peer: trusted(member.peer) for member in live}
    said = _said(live, standing)
    witnesses = sum(standing.values())
    most = manifest.shardcast.upload_bytes_per_second_max
    found = []
    for member in live:
        peer, message = member.peer, member.record.message
        enough = min(WITNESSES_MIN, witnesses - standing[peer])
        classes = said[peer]
        if enough and len(classes) >= enough:
            reached = sorted(number for number in classes if number)
            reachable = 2 * len(reached) > len(classes)
            rate = min(most, rate_of_class(_upper_quartile(reached)))
        else:
            reachable = manifest.is_of_genesis(peer)
            rate = most // UNWITNESSED_SHARE
        found.append(
            ForestMember(
                peer,
                min(rate, message.upload_bytes_per_second or rate),
                message.reachable and reachable and counts(peer),
                standing[peer],
            )
        )
    return ForestMembers(found)


def _said(live: Sequence[Member], standing: dict[PeerId, bool]) -> dict[PeerId, list[int]]:
    """Return what those with standing say of each live member but themselves."""
    said: dict[PeerId, list[int]] = {member.peer: [] for member in live}
    peers = {public_key_from_peer_id(peer): peer for peer in said}
    for member in live:
        if not standing[member.peer]:
            continue
        message = member.record.message
        for key, number in zip(message.witnessed, message.upload_classes, strict=True):
            peer = peers.get(key)
            if peer is not None and peer != member.peer:
                said[peer].append(number)
    return said


def _upper_quartile(classes: Sequence[int]) -> int:
    """Return what a quarter of sorted classes is not below, of 4 to 7 the last but one."""
    return classes[len(classes) - 1 - len(classes) // 4] if classes else 0
