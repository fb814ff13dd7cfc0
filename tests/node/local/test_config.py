import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli import options
from node.local.config import (
    NodeConfig,
    default_config_file,
    default_data_dir,
    load_config,
    load_paths,
)
from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import Identity
from protocol.core.types import Role

CONFIGS = Path(__file__).parents[3] / "configs" / "nodes"
PEER = f"/ip4/127.0.0.1/tcp/31337/p2p/{Identity(bytes(32)).peer_id}"
OTHER = f"/ip4/127.0.0.1/tcp/31338/p2p/{Identity(bytes([1]) * 32).peer_id}"


@pytest.fixture
def environment(tmp_path):
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "none")}


def written(tmp_path, text):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def failure(flags, environment, file=None):
    with pytest.raises(NodeError) as caught:
        load_config(flags, environment, file)
    return caught.value.exit_code, caught.value.message


def test_flag_wins_over_environment_over_file_over_default(tmp_path, environment):
    file = written(tmp_path, 'roles = "relay"\nport = 1\nhost = "127.0.0.1"\napi_port = 1\n')
    environment |= {"PRIME_NODE_PORT": "2", "PRIME_NODE_API_PORT": "2"}
    config = load_config({"api_port": "3", "log_level": None}, environment, file)
    assert (config.api_port, config.port, config.host) == (3, 2, "127.0.0.1")
    assert config.roles == (Role.RELAY,)
    assert config.log_level == "info"
    assert config.data_dir == default_data_dir(environment)


@pytest.mark.parametrize(
    "value", [["relay,validator"], ["relay", "validator"], "relay, validator", "relay,validator,"]
)
def test_lists_are_repeated_or_joined_by_commas(environment, value):
    assert load_config({"roles": value}, environment).roles == (Role.RELAY, Role.VALIDATOR)


@pytest.mark.parametrize("value", [["jsonl", "wandb"], ["jsonl,wandb"], "jsonl, wandb"])
def test_steps_are_logged_where_it_is_asked_for(environment, value):
    assert load_config({"roles": "trainer"}, environment).log_to == ()
    assert load_config({"roles": "trainer", "log_to": value}, environment).log_to == (
        "jsonl", "wandb"
    )  # fmt: skip


def test_a_trainer_shadows_unless_its_operator_chooses_otherwise(environment):
    flags = {"roles": "trainer"}
    assert load_config(flags, environment).shadow is True
    assert load_config(flags, environment | {"PRIME_NODE_SHADOW": "false"}).shadow is False
    assert load_config(flags | {"shadow": False}, environment).shadow is False


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        ({}, ("auto",)),
        ({"trainer_ranks": "1", "device": "cuda:3"}, ("cuda:3",)),
        ({"trainer_ranks": "3"}, ("cpu",) * 3),
        ({"trainer_devices": "0-2,7"}, ("cuda:0", "cuda:1", "cuda:2", "cuda:7")),
        ({"trainer_devices": [5, 2], "device": "cpu"}, ("cuda:5", "cuda:2")),
    ],
)
def test_a_trainer_has_a_rank_on_each_of_its_devices(environment, flags, devices):
    assert load_config({"roles": "trainer"} | flags, environment).training_devices == devices


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        ("ranks = 2", ("cpu", "cpu")),
        ('devices = "0-1"', ("cuda:0", "cuda:1")),
        ("devices = [1, 0]", ("cuda:1", "cuda:0")),
    ],
)
def test_the_file_has_a_section_of_the_trainer(tmp_path, environment, lines, devices):
    file = written(tmp_path, f'roles = ["trainer"]\n[trainer]\n{lines}\n')
    assert load_config({}, environment, file).training_devices == devices
    environment["PRIME_NODE_TRAINER_RANKS"] = "3"
    if lines == "ranks = 2":
        assert load_config({}, environment, file).training_devices == ("cpu",) * 3
        assert load_config({"trainer_ranks": "4"}, environment, file).trainer_ranks == 4


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("[trainer]\nranks = 0", "trainer.ranks: 0: input should be greater"),
        ("[trainer]\nrank = 2", "trainer.rank: unknown key; did you mean trainer.ranks?"),
        ("trainer = 2", "trainer: unknown key"),
        ('[trainer]\ndevices = "7-3"', "trainer.devices: '7-3' is a range that ends before"),
    ],
)
def test_an_error_in_the_section_names_its_key(tmp_path, environment, lines, told):
    file = written(tmp_path, f'roles = ["trainer"]\n{lines}\n')
    exit_code, message = failure({}, environment, file)
    assert exit_code is ExitCode.CONFIG
    assert message.startswith(f"{file}: {told}")


def test_peers_are_checked_and_kept_in_order(environment):
    flags = {"roles": "relay", "initial_peers": [f"{OTHER},{PEER}", PEER]}
    assert load_config(flags, environment).initial_peers == (OTHER, PEER)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"roles": ["miner"]}, "--role: unknown role 'miner'; the roles are inference, validator"),
        ({"roles": []}, "--role: no role given; the roles are inference, validator"),
        ({"initial_peers": ["127.0.0.1:31337"]}, "'127.0.0.1:31337' is not a peer address; write"),
        ({"initial_peers": ["/ip4/1.2.3.4/tcp/1/p2p/Qm"]}, "'Qm' is not the peer id"),
        ({"port": "http"}, "--port: 'http': input should be a valid integer"),
        (
            {"initial_peers": [PEER.replace("127.0.0.1", "999.1.1.1")]},
            "/ip4/999.1.1.1: not an IPv4",
        ),
        ({"initial_peers": [PEER.replace("31337", "99999")]}, "/tcp/99999: not a port"),
        ({"announce_maddrs": ["/ip4/1.2.3.4/tcp/99999"]}, "--announce-maddrs: /tcp/99999: not a"),
        ({"public_ip": "999.1.1.1", "port": "1"}, "--public-ip: '999.1.1.1' is not an IPv4 add"),
        ({"host_maddr": "/ip4/999.0.0.1/tcp/1"}, "--host-maddr: '999.0.0.1' is not an IPv4 addr"),
        ({"data_dir": "~no-such-user/x"}, "--data-dir: '~no-such-user/x' begins with a home dir"),
        ({"port": "70000"}, "--port: '70000': input should be less than or equal to 65535"),
        ({"host": "example.org"}, "--host: 'example.org' is not an IPv4 address"),
        ({"host_maddr": "1.2.3.4:5"}, "--host-maddr: '1.2.3.4:5' is not of the form /ip4/0.0.0.0"),
        ({"host_maddr": "/ip4/0.0.0.0/tcp/1", "port": "1"}, "--host-maddr already says host and"),
        ({"host_maddr": "/ip4/0.0.0.0/tcp/77777"}, "--host-maddr: '77777': input should be less"),
        ({"public_ip": "1.2.3.4"}, "--public-ip needs the --port that it is reached on"),
        (
            {"public_ip": "1.2.3.4", "port": "1", "announce_maddrs": ["/ip4/1.2.3.4/tcp/1"]},
            "--public-ip and --announce-maddrs exclude each other",
        ),
        ({"announce_maddrs": ["1.2.3.4"]}, "--announce-maddrs: '1.2.3.4' is not a multiaddress"),
        ({"new_swarm": True, "initial_peers": PEER}, "--new-swarm and --initial-peers exclude"),
        ({"device": "tpu"}, "--device: 'tpu' is not a device; use auto, cpu, cuda or cuda:N"),
        ({"engine": "sglang"}, "--engine: 'sglang': input should be 'builtin' or 'vllm'"),
        ({"engine": "vllm", "engine_gpus": "0"}, "--engine-gpus: '0': input should be greater"),
        ({"engine_gpus": "2"}, "--engine-gpus is for --engine vllm"),
        ({"trainer_ranks": "0"}, "--trainer-ranks: '0': input should be greater than or equal to"),
        ({"trainer_ranks": "2000"}, "--trainer-ranks: '2000': input should be less than or equal"),
        ({"trainer_ranks": "two"}, "--trainer-ranks: 'two': input should be a valid integer"),
        ({"trainer_devices": "7-3"}, "--trainer-devices: '7-3' is a range that ends before it be"),
        ({"trainer_devices": "0,x"}, "--trainer-devices: 'x' is not a GPU number or a range such"),
        ({"trainer_devices": "0-2,1"}, "--trainer-devices: '0-2,1' names a GPU twice"),
        ({"trainer_devices": ""}, "--trainer-devices: '' is not a GPU number"),
        (
            {"trainer_devices": "0", "trainer_ranks": "1"},
            "--trainer-ranks and --trainer-devices exclude each other",
        ),
        (
            {"trainer_ranks": "2", "device": "cuda:1"},
            "--trainer-ranks is for CPUs; name the GPUs with --trainer-devices",
        ),
        ({"upload_limit": "fast"}, "--upload-limit: 'fast' is not a rate such as 20MB/s"),
        ({"blob_quota": "10 apples"}, "--blob-quota: '10 apples' is not a size such as 500MB"),
        ({"blob_quota": "0MB"}, "--blob-quota: 0: input should be greater than or equal to 1"),
        ({"blob_quota": "20"}, "--blob-quota: '20' has no unit; write a size such as 500MB"),
        ({"upload_limit": "20"}, "--upload-limit: '20' has no unit; write a rate such as 20MB/s"),
        (
            {"log_to": ["jsonl,mlflow"]},
            "--log-to: unknown log 'mlflow'; the logs are jsonl, tensor",
        ),
        ({"log_level": "loud"}, "--log-level: 'loud': input should be 'debug', 'info', 'warning'"),
        ({"port": True}, "--port: write a number, not true or false"),
        ({"name": "x" * 33}, "--name: a name has at most 32 characters"),
        ({"name": "a\x1b[31mb"}, "--name: a name cannot contain the character U+001B"),
        ({"name": "\u202eada"}, "--name: a name cannot contain the character U+202E"),
        ({"run_id": "abc"}, "--run-id: 'abc' is not a run id, which has 64 hexadecimal"),
    ],
)
def test_a_wrong_flag_is_one_line_of_usage(environment, flags, words):
    exit_code, message = failure({"roles": ["relay"]} | flags, environment)
    assert exit_code is ExitCode.USAGE
    assert words in message
    assert "\n" not in message


def test_a_misspelt_key_names_file_key_and_what_was_meant(tmp_path, environment):
    file = written(tmp_path, 'roles = ["relay"]\nblob_qouta = "1GB"\n')
    assert failure({}, environment, file) == (
        ExitCode.CONFIG,
        f"{file}: blob_qouta: unknown key; did you mean blob_quota?",
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("upload_limit = 20", "'20' has no unit; write a rate"),
        ("engine_memory = 1e9", "'1000000000.0' has no unit; write a size"),
        ("blob_quota = true", "write a number, not true or false"),
    ],
)
def test_a_size_in_the_file_needs_its_unit(tmp_path, environment, line, told):
    file = written(tmp_path, f'roles = ["relay"]\n{line}\n')
    exit_code, message = failure({}, environment, file)
    assert exit_code is ExitCode.CONFIG
    assert message.startswith(f"{file}: {line.split()[0]}: {told}")


def test_a_name_is_text_from_each_place(tmp_path, environment):
    file = written(tmp_path, 'roles = ["relay"]\nname = "Éva, [b]"\n')
    assert load_config({}, environment, file).name == "Éva, [b]"
    environment["PRIME_NODE_NAME"] = "7"
    assert load_config({}, environment, file).name == "7"
    assert load_config({"name": ""}, environment, file).name == ""
    exit_code, message = failure({}, {}, written(tmp_path, 'roles = ["relay"]\nname = 7\n'))
    assert exit_code is ExitCode.CONFIG
    assert message.endswith("name: write the name as text, in quotes")


def test_a_role_is_needed(environment):
    assert failure({}, environment) == (
        ExitCode.USAGE,
        "no role given; choose with --role one or more of inference, validator, trainer, relay",
    )


def test_a_misspelt_variable_is_an_error(environment):
    environment["PRIME_NODE_DATADIR"] = "/mnt/big"
    assert failure({"roles": "relay"}, environment) == (
        ExitCode.CONFIG,
        "PRIME_NODE_DATADIR: unknown key; did you mean PRIME_NODE_DATA_DIR?",
    )


def test_an_empty_variable_is_none(environment):
    environment["PRIME_NODE_PORT"] = ""
    assert load_config({"roles": "relay"}, environment).port == 0


def test_a_wrong_value_names_its_place(tmp_path, environment):
    file = written(tmp_path, 'roles = ["relay"]\nport = "x"\n')
    assert failure({}, environment, file)[1].startswith(f"{file}: port: 'x': input should be")
    environment["PRIME_NODE_PORT"] = "y"
    exit_code, message = failure({}, environment, file)
    assert exit_code is ExitCode.CONFIG
    assert message.startswith("PRIME_NODE_PORT: 'y': input should be")


@pytest.mark.parametrize("text", ["roles = [", "\x00", "roles"])
def test_a_file_that_is_not_toml(tmp_path, environment, text):
    file = written(tmp_path, text)
    exit_code, message = failure({}, environment, file)
    assert exit_code is ExitCode.CONFIG
    assert message.startswith(f"{file}: not TOML: ")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, environment):
    file = tmp_path / "node.toml"
    file.write_bytes(b"\xef\xbb\xbf" + b'roles = "relay"\r\nport = 7\r\n')
    assert load_config({}, environment, file).port == 7


@pytest.fixture
def homeless(monkeypatch):
    """User without HOME and without an entry in the user database."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    monkeypatch.setattr("os.getuid", lambda: 54321)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_names_a_data_directory(tmp_path):
    exit_code, message = failure({"roles": "relay"}, {})
    assert (exit_code, "--data-dir or PRIME_NODE_DATA_DIR" in message) == (ExitCode.CONFIG, True)
    assert default_config_file({}) is None
    assert load_config({"roles": "relay", "data_dir": tmp_path}, {}).data_dir == tmp_path
    assert load_paths({}, {"XDG_DATA_HOME": str(tmp_path)}).data_dir == tmp_path / "prime-node"


def test_a_file_that_is_missing(tmp_path, environment):
    environment["PRIME_NODE_CONFIG"] = str(tmp_path / "gone.toml")
    assert failure({}, environment) == (
        ExitCode.CONFIG,
        f"cannot read config file {tmp_path}/gone.toml: No such file or directory",
    )


def test_the_usual_file_is_read_when_it_exists(tmp_path, environment):
    environment["XDG_CONFIG_HOME"] = str(tmp_path)
    usual = default_config_file(environment)
    usual.parent.mkdir()
    usual.write_text('roles = ["trainer"]\n')
    assert load_config({}, environment).roles == (Role.TRAINER,)


def test_paths_of_a_file_are_taken_from_where_it_is(tmp_path, environment):
    file = written(tmp_path, 'roles = "relay"\ndata_dir = "data"\nrun = "run.toml"\n')
    config = load_config({}, environment, file)
    assert (config.data_dir, config.run) == (tmp_path / "data", tmp_path / "run.toml")


def test_paths_are_found_without_the_rest_being_right(tmp_path, environment):
    environment |= {"PRIME_NODE_DATA_DIR": str(tmp_path), "PRIME_NODE_PORT": "x"}
    assert load_paths({}, environment).data_dir == tmp_path


def test_host_maddr_of_one_layer_yields_to_the_port_of_a_higher_one(tmp_path, environment):
    file = written(tmp_path, 'roles = "relay"\nhost_maddr = "/ip4/10.0.0.1/tcp/5"\n')
    config = load_config({"port": "6"}, environment, file)
    assert (config.host, config.port) == ("10.0.0.1", 6)


def test_what_is_announced(environment):
    flags = {"roles": "relay", "port": "5"}
    assert load_config(flags, environment).announce == ()
    public = load_config(flags | {"public_ip": "1.2.3.4"}, environment)
    assert public.announce == ("/ip4/1.2.3.4/tcp/5",)
    listed = load_config(flags | {"announce_maddrs": ["/ip4/1.2.3.4/tcp/9"]}, environment)
    assert listed.announce == ("/ip4/1.2.3.4/tcp/9",)


def test_a_constructed_config_takes_typed_values(tmp_path):
    config = NodeConfig(roles=(Role.RELAY,), data_dir=tmp_path, blob_quota=10, initial_peers=[PEER])
    assert config.blob_quota == 10
    assert config.initial_peers == (PEER,)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_example_files_are_valid_and_for_their_role(path, environment):
    assert load_config({}, environment, path).roles == (Role(path.stem),)


def test_there_is_an_example_for_every_role():
    assert {path.stem for path in CONFIGS.glob("*.toml")} == set(Role)


@given(
    st.dictionaries(
        st.sampled_from([*NodeConfig.model_fields, "host_maddr", "nonsense"]),
        st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.lists(st.text())),
        max_size=4,
    )
)
def test_whatever_a_file_holds_ends_in_a_config_or_in_one_line(values):
    values = {key: value for key, value in values.items() if value is not None}
    environment = {"XDG_CONFIG_HOME": "/nonexistent"}
    try:
        load_config(values, environment)
    except NodeError as error:
        code, message = error.exit_code, error.message
        assert code is ExitCode.USAGE
        assert message


def test_the_keys_of_the_examples_are_documented_in_help():
    flags = vars(options)
    for path in CONFIGS.glob("*.toml"):
        for key in tomllib.loads(path.read_text()):
            assert key.title().replace("_", "") in flags
