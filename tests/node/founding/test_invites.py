"""Invites: one number per key, over crashes between two commands."""

import json

import pytest

from node.cli import main as cli
from node.founding.found import manifest_toml
from node.founding.invites import invite
from node.local.config import load_config
from node.local.errors import NodeError
from node.local.invite_token import invite_token, read_invite
from protocol.core.crypto import verify
from protocol.membership.admission import AdmittedKeys
from protocol.messages import ADMISSION_BYTES_MAX
from protocol.run.manifest import sign_manifest
from tests.worlds.messages import World, identity, run_manifest

CREATOR, MEMBER, GUEST, OTHER = map(identity, ("creator", "member", "guest", "other"))
WORLD = World(run_manifest(admission={"rule": "invite", "inviters": {MEMBER.peer_id: 2}}))
NOW = WORLD.at(5)


def given(path, guest, inviter=CREATOR, days=1.0, now=NOW, world=WORLD):
    return invite(world.manifest, inviter, path, guest.peer_id, now, days)


def test_an_invite_admits_its_guest(tmp_path):
    signed = given(tmp_path / "numbers", GUEST)
    keys = AdmittedKeys(WORLD.manifest, verify)
    assert keys.offer(GUEST.peer_id, signed.envelope, NOW) is True
    assert (signed.message.epoch, signed.message.until) == (5, 5 + 8640)
    assert len(signed.envelope) < ADMISSION_BYTES_MAX


def test_every_guest_has_a_number_of_its_own_and_keeps_it(tmp_path):
    path = tmp_path / "numbers"
    numbers = [given(path, guest).message.number for guest in (GUEST, OTHER, GUEST)]
    assert numbers == [0, 1, 0]


def test_a_line_that_a_crash_cut_short_is_a_number_that_is_given(tmp_path):
    path = tmp_path / "numbers"
    given(path, GUEST)
    path.write_text(path.read_text() + "12D3Koo")
    assert given(path, OTHER).message.number == 2
    assert [given(path, one).message.number for one in (GUEST, OTHER)] == [0, 2]


def test_nobody_invites_more_than_the_manifest_allows(tmp_path):
    path = tmp_path / "numbers"
    for guest in (GUEST, OTHER):
        given(path, guest, MEMBER)
    with pytest.raises(NodeError, match="all 2 invites"):
        given(path, identity("third"), MEMBER)
    assert given(path, GUEST, MEMBER).message.number == 0
    with pytest.raises(NodeError, match="may not invite"):
        given(tmp_path / "others", GUEST, OTHER)
    with pytest.raises(NodeError, match="it needs no invites"):
        given(path, GUEST, world=World(run_manifest()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "no-such-file",
        "AAAA",
        "!",
        "A" * 5000,
        "über",
        "a\0b",
        250 * "ü",  # fewer characters than the bytes allowed in a file name
    ],
)
def test_what_is_no_invite_is_no_invite(text):
    with pytest.raises(ValueError, match="neither an invite"):
        read_invite(text)


def test_a_token_is_read_as_a_word_or_from_a_file(tmp_path):
    envelope = given(tmp_path / "numbers", GUEST).envelope
    token, file = invite_token(envelope), tmp_path / "invite.txt"
    file.write_text(f"{token}\n")
    assert read_invite(token) == read_invite(str(file)) == envelope
    config = load_config({"roles": "inference", "invite": str(file)}, {"HOME": str(tmp_path)})
    assert config.invite == envelope


def test_the_command_prints_what_the_option_takes(tmp_path, capsys):
    run, key = tmp_path / "run.toml", tmp_path / "creator.key"
    run.write_text(manifest_toml(sign_manifest(WORLD.manifest, CREATOR)))
    key.write_bytes(CREATOR.to_protobuf())
    key.chmod(0o600)
    command = ["invite", GUEST.peer_id, "--run", str(run), "--key", str(key)]
    assert cli.main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["number"] == 0
    assert cli.main(command) == 0
    again = read_invite(capsys.readouterr().out)
    assert (tmp_path / "creator.key.invites").read_text() == f"{GUEST.peer_id}\n"
    keys = AdmittedKeys(WORLD.manifest, verify)
    last = WORLD.at(printed["until_epoch"])
    assert keys.offer(GUEST.peer_id, read_invite(printed["invite"]), last) is True
    assert keys.offer(GUEST.peer_id, again, last) is True
    assert keys.counts(GUEST.peer_id, 0, printed["until_epoch"])
