"""Handwritten trace of a small, well-behaved swarm, and ways to break its rules."""

from functools import cache
from itertools import count
from typing import NamedTuple

import base58
import msgpack
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.core.types import Digest, PeerId
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.receipts import PageWork, Receipt, Step
from simulations.checkers import CheckerTolerances, Watch, attach_checkers
from simulations.checkers.outputs import output_of
from simulations.runtime.trace import Event

START = 1_700_000_000.0
EPOCH_SECONDS = 2.0
GENESIS = bytes(31) + b"g"
LED_EPOCH = 10_000
PATIENCE = CheckerTolerances(converge_epochs=5, progress_epochs=20)
REEXAMINATION = {"reexamine_share": 1.0, "reexamine_size": 27}

CREDIT = {
    "per_token": 10,
    "per_checked_token": 4,
    "per_learned_token": 7,
    "lock_epochs": 12,
    "gap_max": 8,
    "slash": True,
}
ERA_EPOCHS = 40


def packed(value) -> bytes:
    return msgpack.packb(value, use_bin_type=True)


@cache
def key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(blake3(name.encode()).digest())


def peer_id(name: str) -> str:
    public = key(name).public_key().public_bytes_raw()
    return base58.b58encode(bytes.fromhex("002408011220") + public).decode()


def forged(envelope: bytes, signature: bytes = bytes(64)) -> bytes:
    """Return a message with an invalid signature."""
    return packed({**msgpack.unpackb(envelope), "signature": signature})


class State(NamedTuple):
    """State of the chain after a page: what its children state, and how it was reached."""

    page: bytes
    epoch: int
    beacon: bytes
    final_epoch: int = -1
    in_a_row: int = 0
    ended: bool = False
    """True if its council has ended."""
    term: int = 0
    head: bytes = b""
    parent: bytes = b""
    work: PageWork = PageWork()


class TraceExample:
    """Emits the events of one run into a watch; time passes with ``wait``.

    Unless a test makes pages, none becomes final, so recoveries are far away.
    """

    def __init__(
        self,
        roles,
        *,
        patience=PATIENCE,
        signatures="keyed",
        steps=1000,
        recovery_epochs=1000,
        **rules,
    ) -> None:
        self.violations = []
        self.watch = Watch(self.violations.append)
        self.checkers = attach_checkers(self.watch, patience)
        self.certificates, self.pages = self.checkers.certificates, self.checkers.pages
        self.now = START
        self.roles = dict(roles)
        self.peers = {name: peer_id(name) for name in roles}
        committee = {
            "size": 2,
            "escalated_size": 3,
            "escalate_after_epochs": 2,
            "expire_after_epochs": 10,
        }
        self.manifest = packed(
            {
                "committee": {**REEXAMINATION, **committee, **rules},
                "council": {
                    "seats_max": 12,
                    "revealers": 2,
                    "silent_epochs": 5,
                    "recovery_epochs": recovery_epochs,
                    "era_epochs": ERA_EPOCHS,
                },
                "credit": CREDIT,
                "epochs": {"seconds": EPOCH_SECONDS, "record_epochs": 5, "refresh_epochs": 2},
                "genesis": {
                    "created_at": int(START),
                    "policy": GENESIS.hex(),
                    "trainers": self._of("trainer"),
                    "validators": self._of("validator"),
                },
                "grpo": {"async_level": 2, "steps": steps},
                "shardcast": {"fanout": 4},
                "toploc": {
                    "gap_sigma": 1e-3,
                    "honest": {"replay_mismatches": {"mean": 1e-3}},
                },
            }
        )
        self.run_id = blake3(self.manifest).digest()
        self.states = {b"": State(b"", -1, blake3(b"prime-node/beacon" + self.run_id).digest())}
        """State of the chain after each page."""
        self.messages = {}
        """Digest to the author and the fields of each message."""
        self.used_epochs = set()
        self._led = b""
        self.output = output_of if signatures == "ed25519" else bytes
        self.emit("world", "run", manifest=self.manifest, signatures=signatures)

    def dishonest(self, *names):
        self._behave("two-votes", names)

    def honest(self, *names):
        self._behave("", names)

    def _behave(self, behaviour, names):
        for name in names:
            self.watch.swarm.members[name].behaviour = behaviour

    def _of(self, role):
        return [self.peers[name] for name, (own, *_) in self.roles.items() if own == role]

    # Events

    def emit(self, node, kind, **facts):
        self.watch.see(Event(self.now, node, kind, facts))

    def wait(self, epochs):
        """Advance time; periodic samples advance the clock of the watch."""
        for _ in range(round(epochs)):
            self.now += EPOCH_SECONDS
            self.emit("world", "sample")

    def up(self, *names, restart=False):
        for name in names or self.roles:
            role, *behaviour = self.roles[name]
            self.emit(
                name,
                "node-up",
                role=role,
                validates=role == "validator",
                peer=self.peers[name],
                restart=restart,
                behaviour=behaviour[0] if behaviour else "",
                upload=1e6,
                download=2e6,
            )

    def down(self, name, how="crash"):
        self.emit(name, "node-down", how=how)

    def stored(self, envelope, *names):
        """Store a message on ``names``, in this order."""
        for name in names:
            self.emit(name, "stored", table="messages", key=b"", value=envelope)

    def spread(self, envelope, *names):
        """Store a message on its author, then on ``names`` or on all other nodes."""
        fields = msgpack.unpackb(envelope)
        author = next(name for name in self.roles if self.peers[name] == fields["signer"])
        if fields["kind"] == "rollout-commit":
            mark = self.digest(envelope).hex()[:16]
            slot = msgpack.unpackb(fields["payload"])
            evaluates = slot["checkpoint"] if slot["evaluation"] else b""
            rules = self.watch.rules
            seed = rules.first_noise_seed(fields["signer"], slot["slot"], evaluates)
            self.emit(author, "generated", rollout=mark, seed=seed, sequences=4, seconds=1.0)
        others = [name for name in names or self.roles if name != author]
        self.stored(envelope, author, *others)

    # Messages

    def signature(self, kind, author, **fields):
        """Return the signature of a message."""
        return key(author).sign(self._head(kind) + packed(fields))

    def envelope(self, kind, author, **fields):
        payload = packed(fields)
        envelope = packed(
            {
                "kind": kind,
                "payload": payload,
                "signature": self.signature(kind, author, **fields),
                "signer": self.peers[author],
            }
        )
        self.messages[self.digest(envelope)] = self.peers[author], fields
        return envelope

    def digest(self, envelope):
        fields = msgpack.unpackb(envelope)
        head = self._head(fields["kind"])
        return blake3(head + fields["signer"].encode() + fields["payload"]).digest()

    def _head(self, kind):
        return b"prime-node/2" + bytes([len(kind)]) + kind.encode() + self.run_id

    def epoch(self):
        return int((self.now - START) // EPOCH_SECONDS)

    def commit(
        self, worker, slot=0, *, version=0, body_bytes=10, checkpoint=GENESIS, evaluation=False
    ):
        return self.envelope(
            "rollout-commit",
            worker,
            epoch=self.epoch(),
            version=version,
            checkpoint=checkpoint,
            slot=slot,
            evaluation=evaluation,
            body=bytes(32),
            body_bytes=body_bytes,
            sequences=4,
            tokens=40,
        )

    def verdict(self, validator, commit, *, accept=True, detail="", page=None, **changes):
        """Return a verdict; without a page it is for that of the certificate that it gets into."""
        fields = {
            "commit": self.digest(commit),
            "page": bytes(32) if page is None else self.digest(page),
            "nonce": bytes(32),
            "accept": accept,
            "reason": "accepted" if accept else "computation",
            "detail": detail,
            "witness": [-(10**9)] * 8,
            "replays": [7] * 8,
        }
        return self.envelope("verdict", validator, **fields | changes)

    def for_page(self, verdict, page):
        """Return a verdict without a page for this one; a forged one stays forged."""
        if b"kind\xa7verdict" not in verdict:
            return verdict
        fields = msgpack.unpackb(verdict)
        payload = msgpack.unpackb(fields["payload"])
        if payload["page"] != bytes(32):
            return verdict
        author = next(name for name, peer in self.peers.items() if peer == fields["signer"])
        made = self.envelope("verdict", author, **payload | {"page": self.digest(page)})
        return forged(made) if fields["signature"] == bytes(64) else made

    def certificate(
        self, validators, commit, *, accepted=True, escalated=False, author=None, page=None
    ):
        page = page or self.drawn_for(commit, [self.peers[name] for name in validators])
        verdicts = [self.verdict(name, commit, accept=accepted, page=page) for name in validators]
        for name, verdict in zip(validators, verdicts, strict=True):
            self.stored(verdict, name)
        author = author or validators[0]
        return self.assembled(
            author, commit, verdicts, accepted=accepted, escalated=escalated, page=page
        )

    def assembled(
        self, author, commit, verdicts, *, accepted=True, escalated=False, page=None, dissents=()
    ):
        """Return a certificate with verdicts that no node need have stored."""
        if page is None:
            page = self.drawn_for(
                commit,
                [peer for peer in self.peers.values() if peer.encode() in b"".join(verdicts)],
            )
        verdicts = [self.for_page(one, page) for one in verdicts]
        dissents = [self.for_page(one, page) for one in dissents]
        return self.envelope(
            "certificate",
            author,
            commit=self.digest(commit),
            page=self.digest(page),
            escalated=escalated,
            accepted=accepted,
            verdicts=verdicts,
            dissents=dissents,
        )

    # Pages

    def key(self, name):
        """Return the public key of a node."""
        return key(name).public_key().public_bytes_raw()

    def ranked(self, text, council=None):
        """Return the members of a council in the order in which ``text`` draws them."""
        members = council or self._of("validator")
        return sorted(members, key=lambda peer: blake3(text + peer.encode()).digest())

    def committee(self, commit, page):
        """Return the ranked names of the committee that a page draws for a commit."""
        names = {peer: name for name, peer in self.peers.items()}
        lot = self.states[self.digest(page)].beacon + self.digest(commit)
        return [names[peer] for peer in self.ranked(lot)]

    def page(
        self,
        parent=b"",
        epoch=None,
        *,
        reveals=None,
        council=None,
        seated=None,
        receipts=(),
        reversals=(),
        **changes,
    ):
        """Return the proposer's page after ``parent``, and note the state of the chain after it.

        ``seated`` is the page that seated the ``council`` (peer ids); None for the genesis. It
        states the work of ``receipts`` and ``reversals`` and of new final versions, unless
        ``changes`` differ.
        """
        before = self.states[parent and self.digest(parent)]
        if seated is not None and parent == seated:
            before = before._replace(final_epoch=before.epoch, in_a_row=0, ended=False)
        epoch = before.epoch + 1 if epoch is None else epoch
        number = epoch.to_bytes(8, "big")
        names = {peer: name for name, peer in self.peers.items()}
        proposer = self.ranked(b"prime-node/proposer" + before.beacon + number, council)[0]
        everything = [] if before.ended else [bytes(80)] * 2
        reveals = everything if reveals is None else reveals
        author = changes.pop("author", names[proposer])
        head = changes.get("head", before.head)
        work = PageWork(tuple(receipts), self.steps(before.head, head), tuple(reversals))
        fields = {
            "epoch": epoch,
            "council": b"" if seated is None else self.digest(seated),
            "parent": before.page,
            "seed": before.beacon,
            "final_epoch": before.final_epoch,
            "term": before.term,
            "head": before.head,
            "reveals": reveals,
            "joined": [],
            "removed": [],
            "drawn": [],
            "seats": [],
            "commits": [],
            "certified": [],
            "overturned": [],
            "rejected": [],
            "checkers": [],
            "work": work.digest,
            "ledger": b"" if before.ended else self.accounts(before.page, before.final_epoch).root,
            **changes,
        }
        envelope = self.envelope("page", author, **fields)
        in_a_row = before.in_a_row + 1 if epoch == before.epoch + 1 else 1
        outputs = [self.output(one) for one in reveals if one]
        output = b"".join(outputs)
        self.states[self.digest(envelope)] = State(
            self.digest(envelope),
            epoch,
            blake3(b"prime-node/beacon" + before.beacon + number + output).digest(),
            before.epoch if in_a_row > 2 else before.final_epoch,
            in_a_row,
            before.ended or bool(fields["joined"] or fields["removed"] or fields["drawn"]),
            fields["term"],
            fields["head"],
            before.page,
            work,
        )
        self.stored(envelope, author)
        return envelope

    def accounts(self, page, epoch):
        """Return the accounts after a page or its ancestor of ``epoch``, by the protocol."""
        path = []
        while page:
            if self.states[page].epoch <= epoch:
                path.append(self.states[page])
            page = self.states[page].parent
        rules = CreditRules(**CREDIT, era_epochs=ERA_EPOCHS, reward_disagreement_rate=0.001)
        accounts = Accounts(rules)
        for one in reversed(path):
            accounts.apply(one.page, one.epoch, Digest(one.beacon), one.head, one.work)
        return accounts

    def steps(self, before, after):
        """Return the versions that become final with the version ``after``; none if unknown."""
        found = []
        while after != before:
            if after not in self.messages:
                return ()
            trainer, fields = self.messages[after]
            learned = {}
            for commit in fields["batch"]:
                worker, rollout = self.messages[commit]
                rollouts, tokens = learned.get(worker, (0, 0))
                learned[worker] = rollouts + 1, tokens + rollout["tokens"]
            shares = tuple((PeerId(one), *learned[one]) for one in sorted(learned))
            omitted = len(fields["omitted"])
            results = fields["round"]["contributions"] if "round" in fields else ()
            others = {self._of("trainer")[one["trainer"]] for one in results} - {trainer}
            step = fields["version"], after, PeerId(trainer), shares, omitted
            found.append(Step(*step, tuple(map(PeerId, sorted(others)))))
            after = fields["parent"]
        return tuple(step for step in reversed(found) if step.version)

    def receipt(self, commit, *checkers, reason="accepted"):
        """Return the receipt of a commit that validators have decided."""
        worker, fields = self.messages[self.digest(commit)]
        numbers = (fields[name] for name in ("version", "slot", "evaluation", "tokens"))
        peers = tuple(sorted(PeerId(self.peers[name]) for name in checkers))
        return Receipt(self.digest(commit), PeerId(worker), *numbers, reason, peers)

    def vote(self, name, about, /, **changes):
        fields = msgpack.unpackb(msgpack.unpackb(about)["payload"])
        vote = {key: fields[key] for key in ("epoch", "council", "parent")}
        vote["page"] = self.digest(about)
        return self.envelope("page-vote", name, **{**vote, **changes})

    def voted(self, page, *names):
        """Let validators vote for a page, all by default; return the page."""
        everybody = [name for name, (role, *_) in self.roles.items() if role == "validator"]
        for name in names or everybody:
            self.stored(self.vote(name, page), name)
        return page

    def chain(self, length, parent=b"", epoch=None, voters=(), **options):
        """Return notarised pages of consecutive epochs after ``parent``."""
        pages = []
        for number in range(length):
            first = epoch if number == 0 else None
            parent = self.voted(self.page(parent, first, **options), *voters)
            pages.append(parent)
        return pages

    def led(self, term=0, head=None):
        """Make a page final that states a term and a version; return the last page after it.

        Its epochs are far ahead of those of ``drawn_for``.
        """
        state = self.states[self._led and self.digest(self._led)]
        head = state.head if head is None else self.digest(head)
        epoch = max(state.epoch + 1, LED_EPOCH)
        first = self.voted(self.page(self._led, epoch, term=term, head=head))
        self._led = self.chain(2, first)[-1]
        return self._led

    def knows(self, *names):
        """Let nodes sample the newest final page, and two epochs pass."""
        for name in names or self.roles:
            self.emit(name, "sample", final_epoch=self.pages.newest_final_epoch)
        self.wait(2)

    def listed(self, *commits, epoch=1, parent=b""):
        """Return a notarised page that lists commits and draws no committee."""
        listed = [self.digest(commit) for commit in commits]
        return self.voted(self.page(parent, epoch, reveals=[b"", b""], commits=listed))

    def drawn_for(self, commit, signers):
        """Return a notarised page that draws ``signers`` first; no other certificate has it.

        Its parent lists the commit after the genesis; both are of epochs of their own.
        """
        members = set(self._of("validator"))
        wanted = set(signers) & members or members
        fields = msgpack.unpackb(msgpack.unpackb(commit)["payload"])
        epoch = fields.get("epoch", 0) + 1
        while epoch in self.used_epochs:
            epoch += 2
        self.used_epochs.add(epoch)
        parent = self.listed(commit, epoch=epoch)
        beacon, number = self.states[self.digest(parent)].beacon, (epoch + 1).to_bytes(8, "big")
        order: list[str] = []
        reveals: list[bytes] = []
        for trial in count():
            if set(order[: len(wanted)]) == wanted:
                break
            reveals = [trial.to_bytes(32, "little") + bytes(48), bytes(80)]
            output = b"".join(map(self.output, reveals))
            text = b"prime-node/beacon" + beacon + number + output
            order = self.ranked(blake3(text).digest() + self.digest(commit))
        return self.voted(self.page(parent, reveals=reveals))

    def checkpoint(
        self,
        version,
        parent=None,
        batch=(),
        *,
        term=0,
        author="trainer",
        policy=None,
        index=bytes(32),
        omitted=(),
        contributors=(),
    ):
        drawn = {
            "term": term,
            "parent": b"" if parent is None else self.digest(parent),
            "batch": [self.digest(commit) for commit in batch],
            "page": b"",
            "omitted": [self.digest(commit) for commit in omitted],
        }
        return self.envelope(
            "checkpoint-manifest",
            author,
            **self._round(contributors, author, drawn),
            **drawn,
            version=version,
            policy=policy or (bytes(31) + bytes([version]) if version else GENESIS),
            index=index,
            index_bytes=100,
            total_bytes=4_000_000,
            reward_mean=500_000,
            created_at=int(self.now * 1000),
        )

    def _round(self, contributors, author, drawn):
        """Return the round of a version with results of some trainers; none without any.

        Its plan and results are stored by their authors.
        """
        if not contributors:
            return {}
        places = [self._of("trainer").index(self.peers[one]) for one in contributors]
        plan = self.envelope("round-plan", author, **drawn, trainers=places)
        self.stored(plan, author)
        contributions = []
        for name, place in zip(contributors, places, strict=True):
            difference = blake3(plan + name.encode()).digest()
            fields = {"plan": self.digest(plan), "difference": difference}
            self.stored(self.envelope("round-result", name, **fields), name)
            contributions.append({"trainer": place, "difference": difference})
        return {"round": {"contributions": contributions, "trainers": places}}

    # Composite events

    def trained(self, *commits):
        """Let the trainer train on rollouts for a second that ends now, certified or not."""
        self.shadowed("trainer", *commits)
        self.emit("trainer", "policy-made", digest="", skill=0.5)

    def shadowed(self, trainer, *commits):
        """Let a trainer repeat such a step: it writes no policy."""
        marks = ",".join(self.digest(commit).hex()[:16] for commit in commits)
        self.emit(trainer, "trained", rollouts=marks, step=1, seconds=1.0)

    def certified(self, worker, validators=("validator-0", "validator-1"), **place):
        """Make a certified rollout, known to every node; return its commit."""
        commit = self.commit(worker, **place)
        self.spread(commit)
        self.spread(self.certificate(validators, commit))
        return commit

    def published(self, version, parent=None, batch=(), **options):
        """Publish a version that every node accepts; return its manifest."""
        manifest = self.checkpoint(version, parent, batch, **options)
        self.spread(manifest)
        return manifest

    @property
    def rules_broken(self):
        return [violation.rule for violation in self.violations]


SMALL = {
    "relay": ("relay",),
    "trainer": ("trainer",),
    "worker-0": ("inference",),
    "liar": ("inference", "edited-tokens"),
    "validator-0": ("validator",),
    "validator-1": ("validator",),
    "validator-2": ("validator",),
}


def small_run(more=None, **options) -> TraceExample:
    """Return a run with all nodes up, ``more`` of them, and with version 0."""
    example = TraceExample({**SMALL, **(more or {})}, **options)
    example.up()
    example.genesis = example.published(0)
    return example
