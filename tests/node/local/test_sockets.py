import fcntl
import os
import tempfile

from node.local.sockets import SOCKET_PATH_BYTES_MAX, SocketDirectory


def test_a_socket_directory_is_private_and_goes_at_close(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = SocketDirectory()
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.close()
    directory.close()
    assert not directory.path.exists()


def test_left_overs_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, dead = SocketDirectory(), SocketDirectory()
    (dead.path / "control.sock").touch()
    fcntl.flock(dead._lock, fcntl.LOCK_UN)  # as the kernel does at death
    (tmp_path / "prime-p2p-strange").mkdir()
    SocketDirectory().close()
    assert living.path.exists()
    assert not dead.path.exists()
    assert (tmp_path / "prime-p2p-strange").exists()
    living.close()


def test_socket_paths_stay_short_enough_under_a_long_temporary_directory(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    directory = SocketDirectory()
    assert len(os.fsencode(directory.path / "control.sock")) <= SOCKET_PATH_BYTES_MAX
    directory.close()
