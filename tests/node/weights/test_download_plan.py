"""Cheapest route to a version, compared with all routes."""

from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from node.weights.download_plan import ONE_SOURCE_COST, DownloadPlanner
from protocol.core.crypto import digest
from protocol.core.types import Digest, Version
from protocol.messages import CheckpointManifest, Encoding, Signed
from roles.ports.engines import Policy
from tests.worlds.messages import run_manifest

RULES = run_manifest(shardcast={"versions_kept": 4, "full_every": 5}).shardcast
FILE_BYTES = 1000


def policy(version):
    return digest(b"policy %d" % version)


def index(version, place):
    return digest(b"%d %d" % (version, place))


@dataclass
class KnownVersions:
    """Chain as ``DownloadPlanner`` reads it; the last of ``manifests`` is the newest version."""

    manifests: list

    @property
    def version(self):
        return len(self.manifests) - 1

    def get(self, version):
        return self.manifests[version] if 0 <= version < len(self.manifests) else None


def signed(version, patches):
    """Return a manifest with patches: base version, bytes, and whether it is our base."""
    encodings = tuple(
        Encoding(
            base_version=base,
            base=b"" if base < 0 else policy(base if true else 99),
            index=index(version, place),
            index_bytes=1,
            total_bytes=total_bytes,
        )
        for place, (base, total_bytes, true) in enumerate(patches)
    )
    message = CheckpointManifest.model_construct(
        version=version,
        policy=policy(version),
        index=digest(b"file %d" % version),
        total_bytes=FILE_BYTES,
        encodings=encodings,
    )
    return Signed("trainer", message, digest(b"message %d" % version), b"")


@st.composite
def histories(draw):
    manifests = []
    for version in range(draw(st.integers(1, 9))):
        patch = st.tuples(
            st.integers(-1, version - 1), st.integers(1, 3 * FILE_BYTES), st.booleans()
        )
        manifests.append(signed(version, draw(st.lists(patch, max_size=3))))
    newest = len(manifests) - 1
    held = draw(st.sets(st.integers(0, newest)))
    return manifests, held, draw(st.integers(0, newest)), draw(st.booleans())


def every_cost(manifests, held, version, oldest, useless):
    """Yield the cost of every route to a version; a held version is never fetched again."""
    message = manifests[version].message
    yield FILE_BYTES * (ONE_SOURCE_COST if version % RULES.full_every else 1)
    for encoding in message.encodings:
        base = encoding.base_version
        if encoding.index == useless or encoding.total_bytes >= FILE_BYTES:
            continue
        if base < 0:
            yield encoding.total_bytes
        elif encoding.base == policy(base):
            if base in held:
                yield encoding.total_bytes
            elif base >= oldest:
                for cost in every_cost(manifests, held, base, oldest, useless):
                    yield cost + encoding.total_bytes


@settings(max_examples=300)
@given(histories())
def test_the_way_is_the_cheapest_of_all(history):
    manifests, held, version, one_useless = history
    held = held - {version}
    routes = DownloadPlanner(
        KnownVersions(manifests), RULES, lambda v: here(v) if v in held else None
    )
    useless = index(version, 0) if one_useless else None
    if useless:
        routes.useless[useless] = None
    route = routes.to(version)
    newest = len(manifests) - 1
    oldest = min(version, newest - newest % 5, newest - 3)
    assert route.cost_bytes == min(every_cost(manifests, held, version, oldest, useless))
    assert route.legs[-1].version == version
    for before, leg in zip((None, *route.legs), route.legs, strict=False):
        encoding = leg.encoding
        if encoding is None or not encoding.base:
            assert leg.base is None
        elif leg.base is not None:
            assert (leg.base.version, leg.base.digest) == (encoding.base_version, encoding.base)
        else:
            assert before.version == encoding.base_version
            assert before.checkpoint.message.policy == encoding.base


def here(version):
    return Policy(Version(version), Digest(policy(version)), Path("here"))


def test_an_unknown_version_has_no_way():
    assert DownloadPlanner(KnownVersions([signed(0, [])]), RULES, lambda _: None).to(1) is None


def test_a_base_that_is_another_policy_here_is_no_base():
    manifests = [signed(0, []), signed(1, [(0, 10, True)])]
    other = Policy(Version(0), digest(b"other"), Path("here"))
    routes = DownloadPlanner(KnownVersions(manifests), RULES, lambda v: other if v == 0 else None)
    (leg,) = routes.to(1).legs
    assert leg.encoding is None


def test_a_trainer_cannot_make_us_search_for_ever():
    """Four bases for each of two hundred versions: more routes than atoms in the universe."""
    manifests = [
        signed(version, [(base, 10, True) for base in range(max(0, version - 4), version)])
        for version in range(200)
    ]
    rules = RULES.model_copy(update={"full_every": 1000})
    route = DownloadPlanner(KnownVersions(manifests), rules, lambda _: None).to(199)
    assert route.cost_bytes == FILE_BYTES + 50 * 10


def test_what_every_node_keeps_for_others():
    kept = {newest: RULES.forms_kept(newest) for newest in (0, 3, 5, 7, 9)}
    assert {newest: (r.start, r.stop) for newest, r in kept.items()} == {
        0: (0, 1),
        3: (0, 4),
        5: (2, 6),
        7: (4, 8),
        9: (5, 10),
    }
