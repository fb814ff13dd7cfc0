"""Signatures match their signer and message only, and gossip is recorded."""

import pytest

from protocol.gossipsub.message import SIGN_PREFIX
from protocol.gossipsub.message import sign_message as gossip_message
from simulations.ports.signing import Scheme, TracedSigner, traced
from simulations.runtime.cores import SIGNATURE_SECONDS, Core
from simulations.runtime.loop import VirtualLoop

SECRET = bytes(31) + b"s"
ONE, OTHER = bytes(31) + b"1", bytes(31) + b"2"


@pytest.mark.parametrize("name", ["keyed", "ed25519"])
def test_a_signature_fits_its_signer_and_message_only(name):
    scheme = Scheme(name, SECRET)
    one, other = scheme.signer(ONE), scheme.signer(OTHER)
    signature = one.sign(b"message")
    assert scheme.verifier(one.peer_id, b"message", signature)
    assert not scheme.verifier(other.peer_id, b"message", signature)
    assert not scheme.verifier(one.peer_id, b"other", signature)
    assert not scheme.verifier(one.peer_id, b"message", other.sign(b"message"))
    assert not scheme.verifier(one.peer_id, b"message", bytes(len(signature)))
    assert scheme.signer(ONE).sign(b"message") == signature


def test_who_lacks_the_secret_cannot_sign():
    inside, outside = Scheme("keyed", SECRET), Scheme("keyed", bytes(32))
    assert inside.signer(ONE).peer_id == outside.signer(ONE).peer_id
    forged = outside.signer(ONE).sign(b"message")
    assert not inside.verifier(inside.signer(ONE).peer_id, b"message", forged)


def test_what_is_gossiped_is_seen_when_it_is_signed_and_when_it_is_first_verified():
    scheme, seen = Scheme("keyed", SECRET), []

    def sighting(topic, signature, ours):
        seen.append((topic, signature, ours))

    signer = TracedSigner(scheme.signer(ONE), sighting)
    loop = VirtualLoop()
    core = Core(loop)
    verify = traced(scheme.verifier, sighting, core)
    signature = signer.sign(b"a message that is not gossiped")
    verify(signer.peer_id, b"a message that is not gossiped", signature)
    assert seen == []
    message = gossip_message(signer, "run/commits", b"data", 1)
    ((topic, signature, ours),) = seen
    assert (topic, signature, ours) == ("commits", message.signature, True)
    text = SIGN_PREFIX + b"x/commits"
    assert verify(signer.peer_id, text, scheme.signer(ONE).sign(text))
    assert not verify(signer.peer_id, text, bytes(64))
    assert [(topic, ours) for topic, _, ours in seen[1:]] == [("commits", False)]
    assert core.spent_seconds == pytest.approx(4 * SIGNATURE_SECONDS), "a good one has an envelope"
    loop.close()
