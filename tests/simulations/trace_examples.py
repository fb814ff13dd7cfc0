"""Handwritten trace of a small, well-behaved swarm, and ways to break its rules."""

from functools import cache

import base58
import msgpack
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simulations.checkers import CheckerTolerances, Watch, attach_checkers
from simulations.runtime.trace import Event

START = 1_700_000_000.0
EPOCH_SECONDS = 2.0
GENESIS = bytes(31) + b"g"
PATIENCE = CheckerTolerances(converge_epochs=5, progress_epochs=20)


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


class TraceExample:
    """Emits the events of one run into a watch; time passes with ``wait``."""

    def __init__(
        self, roles, *, patience=PATIENCE, signatures="keyed", steps=1000, **rules
    ) -> None:
        self.violations = []
        self.watch = Watch(self.violations.append)
        self.certificates = attach_checkers(self.watch, patience)
        self.now = START
        self.roles = dict(roles)
        self.peers = {name: peer_id(name) for name in roles}
        committee = {
            "size": 2,
            "escalated_size": 3,
            "roster_min": 2,
            "escalate_after_epochs": 2,
            "expire_after_epochs": 10,
        }
        self.manifest = packed(
            {
                "committee": {**committee, **rules},
                "epochs": {"seconds": EPOCH_SECONDS, "record_epochs": 5, "refresh_epochs": 2},
                "genesis": {
                    "created_at": int(START),
                    "policy": GENESIS.hex(),
                    "trainers": self._of("trainer"),
                    "validators": self._of("validator"),
                },
                "grpo": {"async_level": 2, "steps": steps},
                "shardcast": {"fanout": 4},
            }
        )
        self.run_id = blake3(self.manifest).digest()
        self.emit("world", "run", manifest=self.manifest, signatures=signatures)

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
            seed = self.watch.rules.first_noise_seed(
                slot["checkpoint"], fields["signer"], slot["slot"]
            )
            self.emit(author, "generated", rollout=mark, seed=seed, sequences=4, seconds=1.0)
        others = [name for name in names or self.roles if name != author]
        self.stored(envelope, author, *others)

    # Messages

    def envelope(self, kind, author, **fields):
        payload = packed(fields)
        return packed(
            {
                "kind": kind,
                "payload": payload,
                "signature": key(author).sign(self._head(kind) + payload),
                "signer": self.peers[author],
            }
        )

    def digest(self, envelope):
        fields = msgpack.unpackb(envelope)
        head = self._head(fields["kind"])
        return blake3(head + fields["signer"].encode() + fields["payload"]).digest()

    def _head(self, kind):
        return b"prime-node/1" + bytes([len(kind)]) + kind.encode() + self.run_id

    def epoch(self):
        return int((self.now - START) // EPOCH_SECONDS)

    def commit(self, worker, slot=0, previous=b"", version=0, body_bytes=10, checkpoint=GENESIS):
        return self.envelope(
            "rollout-commit",
            worker,
            epoch=self.epoch(),
            version=version,
            checkpoint=checkpoint,
            slot=slot,
            previous=previous,
            body=bytes(32),
            body_bytes=body_bytes,
            sequences=4,
            tokens=40,
        )

    def verdict(self, validator, commit, *, accept=True, detail=""):
        return self.envelope(
            "verdict",
            validator,
            commit=self.digest(commit),
            accept=accept,
            reason="accepted" if accept else "computation",
            detail=detail,
        )

    def certificate(self, validators, commit, *, accepted=True, escalated=False, author=None):
        verdicts = [self.verdict(name, commit, accept=accepted) for name in validators]
        for name, verdict in zip(validators, verdicts, strict=True):
            self.stored(verdict, name)
        author = author or validators[0]
        return self.assembled(author, commit, verdicts, accepted=accepted, escalated=escalated)

    def assembled(self, author, commit, verdicts, *, accepted=True, escalated=False):
        """Return a certificate with verdicts that no node need have stored."""
        return self.envelope(
            "certificate",
            author,
            commit=self.digest(commit),
            escalated=escalated,
            accepted=accepted,
            verdicts=verdicts,
        )

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
    ):
        return self.envelope(
            "checkpoint-manifest",
            author,
            version=version,
            term=term,
            parent=b"" if parent is None else self.digest(parent),
            policy=policy or (bytes(31) + bytes([version]) if version else GENESIS),
            index=index,
            index_bytes=100,
            total_bytes=4_000_000,
            batch=[self.digest(commit) for commit in batch],
            reward_mean=500_000,
            created_at=int(self.now * 1000),
        )

    # Composite events

    def trained(self, *commits):
        """Let the trainer train on rollouts for a second that ends now, certified or not."""
        marks = ",".join(self.digest(commit).hex()[:16] for commit in commits)
        self.emit("trainer", "trained", rollouts=marks, step=1, seconds=1.0)

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


def small_run(**options) -> TraceExample:
    """Return a run with all nodes up and with version 0."""
    example = TraceExample(SMALL, **options)
    example.up()
    example.genesis = example.published(0)
    return example
