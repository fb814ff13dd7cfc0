import pytest

from node.local.datadir import open_data_dir
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run, local_run, pin_run, pinned_run
from protocol.core.crypto import Identity
from tests.node.local.run_files import run_toml, signed_run

CREATOR = Identity(bytes(32))
RUN, OTHER = signed_run(CREATOR), signed_run(CREATOR, created_at=1_700_000_001)


@pytest.fixture
def datadir(tmp_path):
    return open_data_dir(tmp_path / "data")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(run_toml(RUN))
    return path


def short(run):
    return f"{run.manifest.run_id.hex()[:12]}…"


def error_of(function, *arguments):
    with pytest.raises(NodeError) as caught:
        function(*arguments)
    assert caught.value.exit_code is ExitCode.CONFIG
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_pinned_run_comes_back(datadir):
    assert pinned_run(datadir) is None
    pin_run(datadir, RUN)
    pin_run(datadir, RUN)
    assert pinned_run(datadir) == RUN


def test_peers_that_offer_another_run_are_refused(datadir):
    pin_run(datadir, RUN)
    assert error_of(pin_run, datadir, OTHER) == (
        f"data dir {datadir.root} belongs to run {short(RUN)}, the peers offer run {short(OTHER)}; "
        "use another --data-dir"
    )
    assert pinned_run(datadir) == RUN


def test_a_damaged_pin_is_named(datadir):
    pin_run(datadir, RUN)
    data = bytearray(datadir.run.read_bytes())
    data[-1] ^= 1
    datadir.run.write_bytes(data)
    assert error_of(pinned_run, datadir).startswith(f"{datadir.run} is damaged (bad-signature")


def test_nothing_is_known_before_the_first_peer(datadir):
    assert local_run(datadir, None, None) is None
    assert local_run(datadir, None, "00" * 32) is None


def test_a_file_is_pinned(datadir, file):
    assert local_run(datadir, file, RUN.manifest.run_id.hex()) == RUN
    assert local_run(datadir, None, None) == RUN


def test_a_byte_order_mark_is_no_part_of_a_manifest(datadir, file):
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_run(file) == RUN


def test_a_file_of_another_run_is_refused(datadir, file):
    pin_run(datadir, OTHER)
    assert error_of(local_run, datadir, file, None) == (
        f"data dir {datadir.root} belongs to run {short(OTHER)}, {file} is run {short(RUN)}; "
        "use another --data-dir"
    )


def test_a_run_id_is_insisted_on(datadir, file):
    wanted = OTHER.manifest.run_id.hex()
    assert error_of(local_run, datadir, file, wanted) == (
        f"--run-id asks for run {short(OTHER)}, {file} is run {short(RUN)}"
    )
    assert pinned_run(datadir) is None
    pin_run(datadir, RUN)
    assert error_of(local_run, datadir, None, wanted) == (
        f"--run-id asks for run {short(OTHER)}, data dir {datadir.root} belongs to run {short(RUN)}"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[admission]", "[admission]\nworkerz = []", "unknown key 'admission.workerz'"),
        ("signature = ", "signed = ", "unknown key 'signed'"),
        ("signature = ", "# ", "signature: missing"),
        ("fanout = 2", "fanout = 3", "signature: not made by the creator 12D3KooW"),
        ("[model]", "[model", "not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_key(file, old, new, words):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    message = error_of(load_run, file)
    assert message.startswith(f"{file}: ")
    assert words in message


def test_a_file_that_cannot_be_read(tmp_path):
    assert error_of(load_run, tmp_path / "none") == (
        f"cannot read {tmp_path}/none: No such file or directory"
    )
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert error_of(load_run, tmp_path / "binary") == f"{tmp_path}/binary: not a text file"
