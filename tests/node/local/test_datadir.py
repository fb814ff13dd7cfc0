import os
import stat
import subprocess
import sys
import textwrap

import pytest

from node.local.addresses import (
    CACHED_PEERS_MAX,
    check_peer_address,
    load_cached_peers,
    store_cached_peers,
)
from node.local.datadir import (
    DataDir,
    load_api_endpoint,
    load_identity,
    load_or_create_identity,
    locked,
    open_data_dir,
    store_api_endpoint,
    store_conflict,
    write_atomically,
)
from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import Identity


@pytest.fixture
def datadir(tmp_path):
    return open_data_dir(tmp_path / "data")


def address(number):
    peer_id = Identity(number.to_bytes(32, "big")).peer_id
    return f"/ip4/10.0.0.1/tcp/{number}/p2p/{peer_id}"


def error_of(function, *arguments):
    with pytest.raises(NodeError) as caught:
        function(*arguments)
    return caught.value.exit_code, caught.value.message


def test_a_new_directory_is_private_and_has_a_version(datadir):
    assert stat.S_IMODE(datadir.root.stat().st_mode) == 0o700
    assert datadir.version.read_text() == "1\n"
    assert open_data_dir(datadir.root).root == datadir.root


def test_another_layout_is_refused(datadir):
    datadir.version.write_text("2\n")
    exit_code, message = error_of(open_data_dir, datadir.root)
    assert exit_code is ExitCode.CONFIG
    assert message == (
        f"data dir {datadir.root} has layout '2' and this prime-node knows 1; "
        "upgrade prime-node or use another --data-dir"
    )


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "data").write_text("")
    exit_code, message = error_of(open_data_dir, tmp_path / "data")
    assert exit_code is ExitCode.LOCKED
    assert message == (
        f"cannot use data dir {tmp_path}/data: File exists; choose another --data-dir"
    )


def test_the_lock_has_one_holder(datadir):
    def again():
        with locked(datadir):
            pass

    with locked(datadir):
        exit_code, message = error_of(again)
    assert exit_code is ExitCode.LOCKED
    assert message == (
        f"data dir {datadir.root} is in use by process {os.getpid()}; "
        "stop it or choose another --data-dir"
    )
    again()


def test_the_lock_goes_with_its_process(datadir):
    holder = textwrap.dedent("""
        import sys
        from pathlib import Path
        from node.local.datadir import DataDir, locked
        with locked(DataDir(Path(sys.argv[1]))):
            print("held", flush=True)
            sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", holder, datadir.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(NodeError, match=f"in use by process {process.pid};"), locked(datadir):
            pass
        process.kill()
    with locked(datadir):
        pass


def test_a_key_is_made_once_and_only_its_owner_can_read_it(datadir):
    identity = load_or_create_identity(datadir.identity)
    assert stat.S_IMODE(datadir.identity.stat().st_mode) == 0o600
    assert load_or_create_identity(datadir.identity).peer_id == identity.peer_id
    assert load_identity(datadir.identity).to_protobuf() == identity.to_protobuf()
    assert sorted(path.name for path in datadir.root.iterdir()) == ["identity.key", "version"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_touch_is_refused(datadir, mode):
    load_or_create_identity(datadir.identity)
    datadir.identity.chmod(mode)
    exit_code, message = error_of(load_or_create_identity, datadir.identity)
    assert exit_code is ExitCode.KEY_PERMISSIONS
    assert message == (
        f"identity key {datadir.identity} is open to other users (mode 0{mode:o}); "
        f"run: chmod 600 {datadir.identity}"
    )


@pytest.mark.parametrize("damage", [b"", b"\x08\x01\x12\x40" + bytes(64), b"x" * 5000])
def test_a_damaged_key_is_kept_and_named(datadir, damage):
    write_atomically(datadir.identity, damage)
    exit_code, message = error_of(load_or_create_identity, datadir.identity)
    assert exit_code is ExitCode.CONFIG
    assert message.startswith(f"identity key {datadir.identity} is damaged: ")
    assert datadir.identity.read_bytes() == damage


def test_a_key_cannot_be_made_where_there_is_no_directory(tmp_path):
    exit_code, message = error_of(load_or_create_identity, tmp_path / "none" / "identity.key")
    assert exit_code is ExitCode.LOCKED
    assert message.startswith("cannot create identity key")


def test_a_write_that_fails_leaves_the_old_file_alone(datadir, monkeypatch):
    write_atomically(datadir.peers, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(datadir.peers, b"new")
    assert datadir.peers.read_bytes() == b"old"
    assert sorted(path.name for path in datadir.root.iterdir()) == ["peers.json", "version"]


def test_a_write_without_replace_keeps_what_is_there(datadir):
    write_atomically(datadir.peers, b"old")
    with pytest.raises(FileExistsError):
        write_atomically(datadir.peers, b"new", replace=False)
    assert datadir.peers.read_bytes() == b"old"


def test_the_api_endpoint_is_remembered(datadir):
    assert load_api_endpoint(datadir) is None
    store_api_endpoint(datadir, 4711)
    endpoint = load_api_endpoint(datadir)
    assert (endpoint.port, endpoint.pid) == (4711, os.getpid())


def test_a_proof_of_two_histories_is_kept_and_named(datadir):
    assert store_conflict(datadir, b"proof") == f"the proof is in {datadir.conflict}"
    assert datadir.conflict.read_bytes() == b"proof"
    datadir.conflict = datadir.root / "absent" / "conflict"
    assert store_conflict(datadir, b"proof").startswith("the proof cannot be written to ")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"port": "x", "pid": 1}', "null"])
def test_a_damaged_api_file_is_no_endpoint(datadir, text):
    datadir.api.write_text(text)
    assert load_api_endpoint(datadir) is None


def test_the_peer_cache_is_bounded_and_keeps_the_first(datadir):
    assert load_cached_peers(datadir) == ()
    addresses = [address(number) for number in range(1, CACHED_PEERS_MAX + 10)]
    store_cached_peers(datadir, [addresses[0], *addresses])
    assert load_cached_peers(datadir) == tuple(addresses[:CACHED_PEERS_MAX])


def test_addresses_of_liars_stay_out_of_the_cache(datadir):
    store_cached_peers(datadir, ["", "javascript:x", f"1.2.3.4{address(1)}", address(2)])
    assert load_cached_peers(datadir) == (address(2),)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["/ip4/1.2.3.4/tcp/1"]', "3", '{"a": 1}'])
def test_a_damaged_peer_cache_is_ignored(datadir, text):
    datadir.peers.write_text(text)
    assert load_cached_peers(datadir) == ()


@pytest.mark.parametrize(
    "text", ["", "/p2p/", "1.2.3.4", "/ip4/1.2.3.4/tcp/1", f"{address(1)}/p2p-circuit", "/" * 300]
)
def test_what_is_no_peer_address(text):
    with pytest.raises(ValueError, match=r"is not (a peer address|the peer id)"):
        check_peer_address(text)


def test_an_address_is_stripped():
    assert check_peer_address(f" {address(3)}\n") == address(3)


def test_names_lie_in_the_directory(tmp_path):
    datadir = DataDir(tmp_path)
    names = ("version", "lock", "identity", "run", "state", "blobs", "weights", "genesis")
    assert len({getattr(datadir, name) for name in names}) == len(names)
    assert all(getattr(datadir, name).parent == tmp_path for name in names)
