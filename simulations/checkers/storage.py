"""Storage rules: messages are stored before they are sent, and blobs stay while a purpose lasts.

A node that sends only stored messages never equivocates after a crash.

A node may delete a blob only after it released every purpose. It must not release what the run
needs, as far as stored messages prove the need. Needed are:

- the body of a commit that has no outcome, or is certified and young enough for training;
- the weights of the newest versions;
- the optimiser state of the newest version.

The difference of a round is not: if it is lost, the outer step takes one difference less.

A node that restarts may have lost its last messages, and with them the reason to keep a blob. Blobs
stored before the present start are held only to the release of every purpose.
"""

from dataclasses import dataclass, field

from simulations.checkers.excluded import seal_of
from simulations.checkers.history import Subject
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event

RULE = "stored-is-kept"

EXPIRY_MARGIN_EPOCHS = 2
"""Clocks differ by seconds, and an outcome takes a moment to be stored."""

FORGOTTEN_EXPIRIES = 4
"""Multiple of the maximum age without an outcome at which a commit is forgotten."""

_Owner = tuple[str, bytes]
"""Purpose and subject, as in events."""


@dataclass(slots=True)
class _Stored:
    """The blobs that one node stored for one owner, and the time."""

    since: float
    digests: dict[bytes, None] = field(default_factory=dict)


class Storage:
    """Follows the blobs of every honest node, with their purposes."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._nodes: dict[str, dict[_Owner, _Stored]] = {}
        self._settled: dict[bytes, bool] = {}
        """Commits with a certificate, and whether it accepts them."""
        self._learned: dict[bytes, None] = {}
        self._versions: dict[int, dict[bytes, Opened]] = {}
        """Manifests of honest trainers by version; more than one when a later term supersedes."""
        self._first_of_term: dict[int, int] = {}
        """Term to its lowest version."""
        self._final_of_term: dict[int, int] = {}
        """Term to the lowest version that a page which states it makes final."""
        self._poisoned: dict[str, None] = {}
        """Policies that no training makes: nodes refuse their versions, and those that follow."""
        watch.on("policy-poisoned", self._on_poisoned)
        watch.on("blob-owned", self._on_owned)
        watch.on("blobs-released", self._on_released)
        watch.on("blob-deleted", self._on_deleted)
        watch.on("node-down", self._on_down)
        watch.on_message("certificate", self._on_certificate)
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on_message("page", self._on_page)
        watch.on_forget(self._forget)

    # Stored blobs

    def _on_owned(self, event: Event) -> None:
        owners = self._nodes.setdefault(event.node, {})
        stored = owners.setdefault(_owner(event), _Stored(event.at))
        stored.digests[_bytes(event, "digest")] = None

    def _on_released(self, event: Event) -> None:
        owner = _owner(event)
        stored = self._nodes.get(event.node, {}).pop(owner, None)
        member = self._watch.swarm.members.get(event.node)
        if stored is None or member is None or not member.honest:
            return
        if not member.steady_since(stored.since, event.at):
            return
        if (need := self._need(owner, event.at)) is not None:
            what, subject = need
            self._watch.report(RULE, event.node, f"released {what}", (subject,))

    def _on_deleted(self, event: Event) -> None:
        digest = _bytes(event, "digest")
        for (purpose, subject), stored in self._nodes.get(event.node, {}).items():
            if digest in stored.digests:
                what = f"deleted {short(digest)}, which it stores for {purpose} {short(subject)}"
                self._watch.report(RULE, event.node, what, (subject,))

    def _on_down(self, event: Event) -> None:
        if event.facts.get("how") == "lost":
            self._nodes.pop(event.node, None)
        for stored in self._nodes.get(event.node, {}).values():
            stored.since = float("-inf")  # the node may be up again at the same moment

    # Needed blobs

    def _need(self, owner: _Owner, at: float) -> tuple[str, Subject] | None:
        """Return why an owner's blobs are needed and for which subject; None if they are not."""
        purpose, subject = owner
        if purpose == "rollout-body":
            reason = self._need_of_body(subject, at)
            return None if reason is None else (f"the body of {short(subject)}, {reason}", subject)
        if purpose == "difference":
            return None
        newest = max(self._versions, default=-1)
        oldest = newest if purpose == "optimiser-state" else newest - self._watch.rules.async_level
        for version in range(max(0, oldest), newest + 1):
            for manifest in self._versions.get(version, {}).values():
                is_usable = not (self._is_contested(manifest) or self._is_poisoned(manifest))
                if manifest.fields["index"] == subject and is_usable:
                    return f"the {purpose} of version {version}, the newest is {newest}", version
        return None

    def _need_of_body(self, digest: bytes, at: float) -> str | None:
        commit = self._watch.wire.message(digest)
        if commit is None or digest in self._learned:
            return None
        accepted, rules = self._settled.get(digest), self._watch.rules
        age_epochs = rules.epoch_at(at) - commit.fields["epoch"] + EXPIRY_MARGIN_EPOCHS
        made_with = self._watch.wire.message(commit.fields["checkpoint"])
        contested = made_with is not None and self._is_contested(made_with)
        if accepted is None:  # it expires with a version that is dropped
            is_open = age_epochs <= rules.expire_epochs and not contested
            return "which has no outcome" if is_open else None
        if age_epochs > FORGOTTEN_EXPIRIES * rules.expire_epochs:
            return None
        young = commit.fields["version"] >= max(self._versions, default=0) - rules.async_level
        return "which may be learned from" if accepted and young and not contested else None

    def _is_contested(self, manifest: Opened) -> bool:
        """Return whether terms disagree about a version or the one before it.

        True also if a later term began below it: the shorter of two branches may win. Nodes drop a
        version after the final one once a page that states a later term is final.
        """
        version, term = manifest.fields["version"], manifest.fields["term"]
        forked = any(len(self._versions.get(near, {})) > 1 for near in (version - 1, version))
        began = any(
            other > term and first <= version for other, first in self._first_of_term.items()
        )
        return (
            forked
            or began
            or any(other > term and last < version for other, last in self._final_of_term.items())
        )

    def _is_poisoned(self, manifest: Opened) -> bool:
        return manifest.fields["policy"].hex() in self._poisoned

    # Known messages

    def _on_poisoned(self, event: Event) -> None:
        self._poisoned[str(event.facts["digest"])] = None

    def _on_certificate(self, _event: Event, _member: TracedNode, certificate: Opened) -> None:
        self._settled[certificate.fields["commit"]] = certificate.fields["accepted"]

    def _on_manifest(self, _event: Event, member: TracedNode, manifest: Opened) -> None:
        self._learned.update(dict.fromkeys(manifest.fields["batch"]))
        is_taken = member.honest and member.peer != manifest.signer
        if (is_taken or self._watch.swarm.honest(manifest.signer)) and manifest.well_signed:
            version, term = manifest.fields["version"], manifest.fields["term"]
            self._versions.setdefault(version, {})[manifest.digest] = manifest
            self._first_of_term[term] = min(version, self._first_of_term.get(term, version))

    def _on_page(self, _event: Event, _member: TracedNode, page: Opened) -> None:
        term, head = page.fields["term"], self._watch.wire.message(page.fields["head"])
        version = -1 if head is None else head.fields["version"]
        self._final_of_term[term] = min(version, self._final_of_term.get(term, version))

    def _forget(self, _oldest: float) -> None:
        wire = self._watch.wire  # it has dropped older messages
        self._settled = {key: how for key, how in self._settled.items() if wire.message(key)}
        self._learned = {key: None for key in self._learned if wire.message(key)}


def _owner(event: Event) -> _Owner:
    return str(event.facts["purpose"]), _bytes(event, "subject")


def _bytes(event: Event, fact: str) -> bytes:
    value = event.facts[fact]
    if not isinstance(value, bytes):
        raise TypeError(f"{fact} of {event.kind} is a digest")
    return value


class Durability:
    """No node stores a message of an honest author before that author has stored it.

    A seal follows from its verdict, so the author stores that alone.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._sealed: dict[bytes, bytes] = {}
        """Seals of verdicts that their authors have stored, with the commits."""
        watch.on_message("*", self._on_message)
        watch.on_forget(self._forget)

    def _forget(self, _oldest: float) -> None:
        wire = self._watch.wire  # it has dropped older messages
        self._sealed = {seal: one for seal, one in self._sealed.items() if wire.message(one)}

    def _on_message(self, event: Event, member: TracedNode, message: Opened) -> None:
        is_own = message.signer == member.peer and message.well_signed
        if message.kind == "verdict" and is_own and "nonce" in message.fields:
            self._sealed[seal_of(message)] = message.fields["commit"]
        is_derived = message.kind == "verdict-seal" and message.fields["seal"] in self._sealed
        is_stored = message.stored_by_author or is_derived
        if message.signer == member.peer or is_stored or not message.well_signed:
            return
        if not self._watch.swarm.honest(message.signer):
            return
        author = self._watch.swarm.name(message.signer)
        what = f"holds a {message.kind} that {author} sent before storing it"
        subject = message.commit
        self._watch.report("stored-first", event.node, what, () if subject is None else (subject,))
