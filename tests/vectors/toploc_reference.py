"""Independent TOPLOC reference: slow, in Python integers, written from the description.

It uses Lagrange in place of Newton, sorting in place of partitions, sets in place of array tricks.
Run as a script it prints the vectors: ``python tests/vectors/toploc_reference.py``.
"""

import json
import math
import struct
import sys
from fractions import Fraction

P = 65497
WIDTH = {"bf16": 16, "fp32": 32}
MANTISSA = {"bf16": 7, "fp32": 23}
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def top(bits, variant, top_k):
    mask = (1 << (WIDTH[variant] - 1)) - 1
    return sorted(range(len(bits)), key=lambda i: (-(bits[i] & mask), i))[:top_k]


def modulus(indices):
    for m in range(P, 2**15 - 1, -1):
        if len({i % m for i in indices}) == len(indices):
            return m
    raise AssertionError


def lagrange(xs, ys):
    master = [1]
    for x in xs:
        shifted = [0, *master]
        for power, c in enumerate(master):
            shifted[power] = (shifted[power] - x * c) % P
        master = shifted
    total = [0] * len(xs)
    for x, y in zip(xs, ys, strict=True):
        quotient, carry = [0] * len(xs), 0
        for power in range(len(xs), 0, -1):
            carry = (master[power] + carry * x) % P
            quotient[power - 1] = carry
        scale = 1
        for other in xs:
            if other != x:
                scale = scale * (x - other) % P
        scale = y * pow(scale, -1, P) % P
        total = [(t + scale * q) % P for t, q in zip(total, quotient, strict=True)]
    return total


def halves(value, variant):
    return [value] if variant == "bf16" else [value >> 16, value & 0xFFFF]


def prove_chunk(bits, variant, top_k):
    indices = top(bits, variant, top_k)
    m = modulus(indices)
    words = [m]
    for plane in range(len(halves(0, variant))):
        ys = [halves(bits[i], variant)[plane] % P for i in indices]
        c = lagrange([i % m for i in indices], ys)
        words += c + [0] * (top_k - len(c))
    return struct.pack(f">{len(words)}H", *words)


def cut(bits, hidden, chunk_tokens):
    step = hidden * chunk_tokens
    return [bits[start : start + step] for start in range(0, len(bits), step)]


def prove(bits, hidden, variant, chunk_tokens=32, top_k=128):
    return [prove_chunk(chunk, variant, top_k) for chunk in cut(bits, hidden, chunk_tokens)]


def verify_chunk(bits, proof, variant, top_k):
    m, *words = struct.unpack(f">{len(proof) // 2}H", proof)
    planes = [words[start : start + top_k] for start in range(0, len(words), top_k)]
    mismatches, errors = 0, []
    for i in top(bits, variant, top_k):
        parts = [sum(c * pow(i % m, e, P) for e, c in enumerate(plane)) % P for plane in planes]
        claims = [parts[0]]
        if variant == "fp32":
            lows = [low for low in (parts[1], parts[1] + P) if low < 2**16]
            claims = [parts[0] << 16 | low for low in lows]
        low_bits = 1 << MANTISSA[variant]
        error = min(abs(claim - bits[i]) for claim in claims)
        near = variant == "fp32" and error <= 4096
        if claims[0] // low_bits != bits[i] // low_bits and not near:
            mismatches += 1
        else:
            errors.append(error)
    if not errors:
        return mismatches, 2.0**64, 2.0**64
    errors.sort()
    median = Fraction(errors[(len(errors) - 1) // 2] + errors[len(errors) // 2], 2)
    return mismatches, float(Fraction(sum(errors), len(errors))), float(median)


def verify(bits, hidden, proofs, variant, chunk_tokens=32, top_k=128):
    chunks = zip(cut(bits, hidden, chunk_tokens), proofs, strict=True)
    return [verify_chunk(chunk, proof, variant, top_k) for chunk, proof in chunks]


class SplitMix:
    """SplitMix64 as published: a source of synthetic states."""

    def __init__(self, state):
        self.state = state

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & M64
        z = (self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9 & M64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
        return z ^ z >> 31


def mix(x, key=0):
    """Return triple32 as published, with a key before the second product."""
    x ^= x >> 17
    x = x * 0xED5AD4BB & M32
    x ^= x >> 11
    x ^= key
    x = x * 0xAC4C1B51 & M32
    x ^= x >> 15
    x = x * 0x31848BAB & M32
    return x ^ x >> 14


def noise_bits(seed, position, vocabulary):
    low, high = seed & M32, seed >> 32
    keys = [
        mix(mix(mix(word + increment & M32) + other & M32) + position & M32)
        for word, other, increment in ((low, high, 0x9E3779B9), (high, low, 0x85EBCA6B))
    ]
    return [mix(token ^ keys[0], keys[1]) for token in range(vocabulary)]


def gumbel(bits):
    return -math.log(-math.log1p(-min((bits + 0.5) / 2**32, 1 - 2**-24)))


def float_bits(value, variant):
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    if variant == "fp32":
        return bits
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def states(seed, count, variant, noise_seed=None, noise=0.0):
    """Return sums of uniform numbers times ``1 + noise * uniform``: exact on every platform."""
    stream, other = SplitMix(seed), SplitMix(noise_seed or 0)
    bits = []
    for _ in range(count):
        value = sum(stream.next() / 2**64 - 0.5 for _ in range(4))
        value *= 1 + noise * (other.next() / 2**63 - 1)
        bits.append(float_bits(value, variant))
    return bits


def sparse(count, variant, at):
    """Return zeros except for ``at``: big chunks that stay small in a file."""
    bits = [0] * count
    for index, value in at.items():
        bits[index] = float_bits(value, variant)
    return bits


def case(name, bits, own, hidden, variant, chunk_tokens, top_k):
    digits = WIDTH[variant] // 4
    proofs = prove(bits, hidden, variant, chunk_tokens, top_k)

    def listed(values):
        kept = {str(i): f"{value:0{digits}x}" for i, value in enumerate(values) if value}
        return kept if len(kept) < len(values) // 2 else "".join(f"{v:0{digits}x}" for v in values)

    return {
        "name": name,
        "variant": variant,
        "tokens": len(bits) // hidden,
        "hidden": hidden,
        "chunk_tokens": chunk_tokens,
        "top_k": top_k,
        "states": listed(bits),
        "proofs": [proof.hex() for proof in proofs],
        "own_states": listed(own),
        "results": [list(r) for r in verify(own, hidden, proofs, variant, chunk_tokens, top_k)],
    }


def collision(variant):
    # 7 and 65504 agree modulo 65497, 19 and 65515 modulo 65496: the answer is 65495.
    at = {7: 9.0, 65504: -8.5, 19: 3.25, 65515: 7.75, 163839: -1.125}
    at |= {1000 + 511 * i: 1 + i / 128 for i in range(130)}
    own = {i: value * (1 + (i % 7 - 3) / 4096) for i, value in at.items()}
    return sparse(32 * 5120, variant, at), sparse(32 * 5120, variant, own)


def build_vectors():
    cases = []
    for variant, noise in (("bf16", 0.01), ("fp32", 1e-5)):
        shapes = ((9, 32, 32, 128), (5, 24, 2, 16), (1, 5, 32, 128))
        for tokens, hidden, chunk_tokens, top_k in shapes:
            bits = states(tokens, tokens * hidden, variant)
            own = states(tokens, tokens * hidden, variant, noise_seed=5, noise=noise)
            name = f"{variant} {tokens}x{hidden} noise {noise}"
            cases.append(case(name, bits, own, hidden, variant, chunk_tokens, top_k))
        flipped = [value ^ 1 << (WIDTH[variant] - 1) for value in bits]
        name = f"{variant} negated"
        cases.append(case(name, bits, flipped, hidden, variant, chunk_tokens, top_k))
        name = f"{variant} modulus 65495"
        cases.append(case(name, *collision(variant), 5120, variant, 32, 128))
    low = [0x3F80_0000 | value for value in (*range(65490, 65536), *range(45))]
    near = [value ^ 1 for value in low]
    cases.append(case("fp32 aliased low halves", low, near, 91, "fp32", 1, 128))
    edge = [(120 + place) << 23 for place in range(8)]
    across = [value - (1 << place) for place, value in enumerate(edge, start=6)]
    cases.append(case("fp32 beside powers of two", edge, across, 8, "fp32", 1, 8))
    noise = [
        {
            "seed": seed,
            "position": position,
            "bits": [f"{value:08x}" for value in noise_bits(seed, position, 4)],
            "noise": [gumbel(value) for value in noise_bits(seed, position, 4)],
        }
        for seed, position in ((0, 0), (1234567, 0), (1234567, 41), (2**64 - 1, 7))
    ]
    return {"proofs": cases, "sampling": noise}


if __name__ == "__main__":
    json.dump(build_vectors(), sys.stdout, indent=1)
    sys.stdout.write("\n")
