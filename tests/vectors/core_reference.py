"""Core vectors, computed from the text of the protocol without its code.

``python tests/vectors/core_reference.py`` prints ``core.json``. A change of its content is a change
of the protocol, and needs another protocol version.
"""

import itertools
import json
import sys
from fractions import Fraction
from math import comb
from typing import Any

import base58
import msgpack
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

SEEDS = [bytes([n]) * 32 for n in range(6)]
WORKER, VALIDATORS = 0, (1, 2, 3, 4, 5)

VALUES: list[Any] = [
    None,
    True,
    0,
    127,
    128,
    -32,
    -33,
    2**53,
    2**64 - 1,
    -(2**63),
    0.0,
    1.5,
    "",
    "é",
    [],
    {"b": [1, [2]], "a": {"z": None, "é": 0.25}},
]

MANIFEST: dict[str, Any] = {
    "admission": {
        "inviters": {},
        "probation_epochs": 2,
        "rule": "open",
        "settled_epochs": 20,
        "work_bits": 5,
        "work_kib": 64,
        "work_passes": 2,
        "workers": [],
    },
    "committee": {
        "escalate_after_epochs": 4,
        "escalated_size": 4,
        "expire_after_epochs": 10,
        "reexamine_share": 0.5,
        "reexamine_size": 5,
        "size": 2,
    },
    "council": {
        "era_epochs": 360,
        "recovery_epochs": 60,
        "revealers": 3,
        "seats_max": 100,
        "silent_epochs": 30,
    },
    "credit": {
        "gap_max": 64,
        "lock_epochs": 60,
        "per_checked_token": 4,
        "per_learned_token": 10,
        "per_token": 10,
        "slash": True,
    },
    "environment": {"name": "arithmetic", "options": {}, "pass_rates": []},
    "epochs": {"record_epochs": 5, "refresh_epochs": 1, "seconds": 10.0},
    "genesis": {"created_at": 1_700_000_000, "files": {}, "policy": "ab" * 32},
    "grpo": {
        "adam_betas": [0.9, 0.95],
        "async_level": 2,
        "gradient_clip": 1.0,
        "learning_rate": 0.0001,
        "loss": {
            "advantage": "group",
            "aggregation": "token",
            "delta": 4.0,
            "entropy_coefficient": 0.0,
            "epsilon": 0.2,
            "kind": "grpo",
            "kl_coefficient": 0.0,
            "log_ratio_coefficient": 0.0,
            "mask_truncated": False,
        },
        "optimiser": "adamw",
        "refill_max": 4,
        "rollouts_ahead": 2,
        "rollouts_per_step": 4,
        "schedule": "constant",
        "steps": 100,
        "updates_per_version": 2,
        "warmup_steps": 0,
        "weight_decay": 0.0,
    },
    "model": {
        "architecture": "qwen2",
        "config": {"eos_token_id": 1, "vocab_size": 32},
        "dtype": "fp32",
        "head": "fp32",
        "name": "vector",
    },
    "name": "vector",
    "sampling": {
        "group_size": 2,
        "length_penalty": 0.0,
        "length_targets": [10, 20, 30],
        "prompts_per_rollout": 2,
        "temperature": 1.0,
        "tokens_max": 8,
    },
    "shardcast": {
        "chunk_bytes": 65_536,
        "fanout": 2,
        "full_every": 5,
        "state_every": 1,
        "shard_bytes": 262_144,
        "stripes": 4,
        "upload_bytes_per_second_max": 125_000_000,
        "versions_kept": 6,
    },
    "toploc": {
        "audit_share": 1.0,
        "chunk_tokens": 32,
        "exponent_mismatches_max": 4,
        "false_reject_rate": 1e-06,
        "gap_sigma": 1e-06,
        "history_rollouts": 64,
        "honest": {
            "exponent_mismatches": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "logprob_error": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "logprob_outliers": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "logprob_shift": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "mantissa_error": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "replay_mismatches": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "sampling_gap": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
            "sampling_surprise": {"clip": 1.0, "mean": 0.25, "variance": 0.5},
        },
        "logprob_error_max": 0.001,
        "logprob_tau": 1e-05,
        "mantissa_error_mean_max": 32.0,
        "mantissa_error_median_max": 32.0,
        "measured_on": "one machine",
        "measured_tokens": 1_000_000,
        "precision": "fp32",
        "sampling_gap_max": 0.001,
        "slash_rate": 1e-12,
        "top_k": 64,
        "uniform_audit_share": 0.2,
    },
}


def digest(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


def canonical(value: Any) -> bytes:
    def ordered(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: ordered(item[key]) for key in sorted(item)}
        return [ordered(one) for one in item] if isinstance(item, list) else item

    return msgpack.packb(ordered(value))


def public_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def peer_id(seed: bytes) -> str:
    return base58.b58encode(bytes.fromhex("002408011220") + public_key(seed)).decode()


def manifest() -> dict[str, Any]:
    keys = {
        "creator": peer_id(SEEDS[0]),
        "trainers": [peer_id(SEEDS[0])],
        "validators": [peer_id(SEEDS[n]) for n in VALIDATORS],
    }
    return MANIFEST | {"genesis": MANIFEST["genesis"] | keys}


def envelope(run_id: bytes) -> dict[str, Any]:
    """Return a rollout commit of the worker, signed."""
    fields = {
        "epoch": 7,
        "version": 0,
        "checkpoint": bytes.fromhex("ab" * 32),
        "slot": 0,
        "evaluation": False,
        "body": digest(b"body"),
        "body_bytes": 1000,
        "sequences": 4,
        "tokens": 20,
    }
    kind, payload, seed = b"rollout-commit", canonical(fields), SEEDS[WORKER]
    domain = b"prime-node/2" + bytes([len(kind)]) + kind + run_id
    outer = {
        "kind": kind.decode(),
        "payload": payload,
        "signature": Ed25519PrivateKey.from_private_bytes(seed).sign(domain + payload),
        "signer": peer_id(seed),
    }
    name = digest(domain, peer_id(seed).encode(), payload)
    return {"envelope": canonical(outer).hex(), "digest": name.hex()}


def council(run_id: bytes, commit: bytes, epoch: int) -> dict[str, Any]:
    """Return who makes the first page, dated ``epoch``, and the committee that it draws.

    ``outputs`` replaces those of the verifiable random function; one member reveals nothing.
    """
    peers = [peer_id(SEEDS[n]) for n in VALIDATORS]
    seed, date = digest(b"prime-node/beacon", run_id), epoch.to_bytes(8, "big")

    def ranked(purpose: bytes) -> list[str]:
        text = b"prime-node/" + purpose + seed + date
        return sorted(peers, key=lambda peer: digest(text, peer.encode()))

    revealers = ranked(b"revealer")[: MANIFEST["council"]["revealers"]]
    outputs = {peer: 2 * digest(peer.encode()) for peer in revealers[1:]}
    beacon = digest(b"prime-node/beacon", seed, date, *outputs.values())
    return {
        "epoch": epoch,
        "seed": seed.hex(),
        "alpha": (b"prime-node/reveal" + run_id + seed + date).hex(),
        "proposer": ranked(b"proposer")[0],
        "revealers": revealers,
        "outputs": {peer: output.hex() for peer, output in outputs.items()},
        "beacon": beacon.hex(),
        "ranking": sorted(peers, key=lambda peer: digest(beacon, commit, peer.encode())),
    }


def seats() -> dict[str, Any]:
    """Return the seats that a beacon gives to keys in an era, and an order of these keys."""
    genesis, worker = [peer_id(SEEDS[n]) for n in VALIDATORS], peer_id(SEEDS[WORKER])
    tokens, era, beacon = {worker: 700, genesis[0]: 300}, 3, digest(b"era 3")
    share, work = max(2, 6 - era), sum(tokens.values())
    weights = {
        peer: tokens.get(peer, 0) * (6 - share) * len(genesis) + work * share * (peer in genesis)
        for peer in sorted({*tokens, *genesis})
    }
    drawn: dict[str, int] = {}
    for seat in range(MANIFEST["council"]["seats_max"]):
        point = digest(b"prime-node/seat", beacon, seat.to_bytes(2, "big"))
        left = int.from_bytes(point, "big") % sum(weights.values())
        for peer, weight in weights.items():
            if left < weight:
                drawn[peer] = drawn.get(peer, 0) + 1
                break
            left -= weight
    lot = b"prime-node/proposer" + beacon + (1080).to_bytes(8, "big")
    first = {
        peer: min(digest(lot, peer.encode(), bytes([n]) if n else b"") for n in range(count))
        for peer, count in drawn.items()
    }
    return {
        "era": era,
        "beacon": beacon.hex(),
        "tokens": tokens,
        "seats": drawn,
        "epoch": 1080,
        "order": sorted(first, key=lambda peer: first[peer]),
    }


RULE = {"every_versions": 5, "rollouts_per_worker": 2, "rows_per_held_out_row": 20}
"""A section ``evaluation``."""


def assignment(run_id: bytes, slot: int, evaluates: bytes = b"") -> list[list[int]]:
    """Return group, problem seed, noise seed and length target of every sequence of a slot.

    ``evaluates``: the checkpoint of an evaluation slot.
    """
    worker = peer_id(SEEDS[WORKER]).encode()
    domain, held_out = (b"evaluation", 2**64) if evaluates else (b"assignment", 0)
    number = slot.to_bytes(8, "big")
    root = digest(b"prime-node/" + domain, run_id, evaluates, worker, b"/", number)
    rows = []
    for group in range(2):
        stream = blake3(root + group.to_bytes(4, "big")).digest(32)
        problem, length, *noises = (
            int.from_bytes(stream[at : at + 8], "big") for at in (0, 8, 16, 24)
        )
        rows += [[group, held_out + problem, noise, (10, 20, 30)[length % 3]] for noise in noises]
    return rows


def admission(run_id: bytes, epoch: int) -> dict[str, Any]:
    """Return the worker's proof of work with the smallest nonce, and its hash."""
    name, rules = peer_id(SEEDS[WORKER]).encode(), MANIFEST["admission"]
    date = epoch.to_bytes(8, "big")
    dated = digest(b"prime-node/beacon", run_id, date)
    salt = digest(b"prime-node/admission", run_id, dated, name, date)
    for nonce in itertools.count():
        work = Argon2id(
            salt=salt,
            length=32,
            iterations=rules["work_passes"],
            lanes=1,
            memory_cost=rules["work_kib"],
        )
        hashed = work.derive(nonce.to_bytes(8, "big"))
        if f"{int.from_bytes(hashed, 'big'):0256b}".startswith("0" * rules["work_bits"]):
            break
    return {"epoch": epoch, "proof": (date + nonce.to_bytes(8, "big")).hex(), "hash": hashed.hex()}


def draws() -> dict[str, Any]:
    """Return the draws of one stream, each from its own counter."""

    def block(seed: bytes, counter: int, suffix: bytes = b"", length: int = 8) -> bytes:
        return blake3(seed + counter.to_bytes(8, "big") + suffix).digest(length)

    def number(seed: bytes, counter: int) -> int:
        return int.from_bytes(block(seed, counter), "big")

    child = digest(b"seed/gossip")
    items = list("abcde")
    for counter, last in enumerate((4, 3, 2, 1)):
        chosen = number(child, counter) * (last + 1) >> 64
        items[last], items[chosen] = items[chosen], items[last]
    return {
        "bits64": number(b"seed", 0),
        "below_1000": number(b"seed", 1) * 1000 >> 64,
        "uniform": (number(b"seed", 2) >> 11) / 2**53,
        "bytes_5": block(b"seed", 3, b"b", 5).hex(),
        "gossip_shuffled": "".join(items),
    }


def witness() -> dict[str, Any]:
    """Return the witness points of a commit with three audited sequences."""
    sequences, vocabulary = [[5, 6, 1], [31, 1], [9, 9, 9, 9, 1]], 32
    beacon, commit = digest(b"beacon"), digest(b"commit")
    seed = digest(b"prime-node/witness", beacon, commit)
    words = (
        int.from_bytes(blake3(seed + counter.to_bytes(8, "big")).digest(8), "big")
        for counter in itertools.count()
    )
    points = []
    for _ in range(8):
        index = next(words) * len(sequences) >> 64
        position = next(words) * len(sequences[index]) >> 64
        other = next(words) * (vocabulary - 1) >> 64
        token = other + 1 if other >= sequences[index][position] else other
        points.append([index, position, token, next(words)])
    return {
        "beacon": beacon.hex(),
        "commit": commit.hex(),
        "sequences": sequences,
        "vocabulary": vocabulary,
        "points": points,
    }


def agreement() -> list[list[Any]]:
    """Return limits of some calibrations: sigma, share of replays, sum in billionths, replays."""
    found = []
    for sigma, share in ((1e-6, 1e-4), (1.31e-6, 0.000279), (0.0624, 0.101), (0.1, 1.0)):
        exact, chance, tail, most = Fraction(sigma), Fraction(share), Fraction(1), 8
        for count in range(9):
            tail -= comb(8, count) * chance**count * (1 - chance) ** (8 - count)
            if tail <= Fraction(0.001):
                most = count
                break
        found.append([sigma, share, int(64 * exact * 10**9), most])
    return found


def seal() -> dict[str, Any]:
    """Return a verdict, and its seal by the first validator."""
    fields: dict[str, Any] = {
        "commit": digest(b"commit"),
        "page": digest(b"page"),
        "nonce": digest(b"nonce"),
        "accept": False,
        "reason": "format",
        "detail": "é",
        "chunks": 0,
        "means": [],
        "extremes": [],
        "witness": [],
        "replays": [],
    }
    signer = peer_id(SEEDS[VALIDATORS[0]])
    content = canonical({key: value for key, value in fields.items() if key != "nonce"})
    value = digest(b"prime-node/verdict-seal", signer.encode(), fields["nonce"], content)
    shown = {key: item.hex() if isinstance(item, bytes) else item for key, item in fields.items()}
    return {"verdict": shown, "signer": signer, "seal": value.hex()}


def policy() -> dict[str, Any]:
    tensors = [["b.weight", "F32", [2, 3], digest(b"b")], ["a.bias", "BF16", [], digest(b"a")]]
    shown = [[name, dtype, shape, body.hex()] for name, dtype, shape, body in tensors]
    return {"tensors": shown, "digest": digest(canonical(sorted(tensors))).hex()}


def evaluation() -> dict[str, Any]:
    """Return evaluation slots of a run."""
    run = manifest() | {"evaluation": RULE}
    run_id = digest(canonical(run))
    return {
        "rule": RULE,
        "run_id": run_id.hex(),
        "assignment": {
            str(slot): assignment(run_id, slot, digest(b"checkpoint")) for slot in range(2)
        },
        "held_out_rows": [
            20 * block + int.from_bytes(digest(f"math/rows/held-out/{block}".encode()), "big") % 20
            for block in range(8)
        ],
    }


def vectors() -> dict[str, Any]:
    run_id = digest(canonical(manifest()))
    commit = envelope(run_id)
    return {
        "canonical": [[value, canonical(value).hex()] for value in VALUES],
        "digests": {text: digest(text.encode()).hex() for text in ("", "prime-node")},
        "identities": [[seed.hex(), public_key(seed).hex(), peer_id(seed)] for seed in SEEDS],
        "manifest": manifest(),
        "run_id": run_id.hex(),
        "commit": commit,
        "council": council(run_id, bytes.fromhex(commit["digest"]), 8),
        "seats": seats(),
        "assignment": {str(slot): assignment(run_id, slot) for slot in (0, 1, 2**53)},
        "evaluation": evaluation(),
        "admission": admission(run_id, 7),
        "rng": draws(),
        "witness": witness(),
        "agreement": agreement(),
        "seal": seal(),
        "policy": policy(),
    }


if __name__ == "__main__":
    json.dump(vectors(), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
