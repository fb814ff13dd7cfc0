"""Fuzz targets: they cover every registered kind and protocol, and find planted faults."""

import json
import sys
import time
from pathlib import Path
from random import Random

import msgpack
import pytest

from node.network.streams.protocols import STREAM_PROTOCOLS
from protocol.messages import Message
from tests.fuzz import __main__ as command
from tests.fuzz import guided, streams
from tests.fuzz.daemon import RELAY, Swarm
from tests.fuzz.running import Run, fuzzed, left_in, repeated
from tests.fuzz.target import BrokenBoundError, Decoder, Target
from tests.fuzz.targets import TARGETS

COVERED = {name for target in TARGETS.values() for name in target.covers}
SEED = 5
INPUTS = {"serve": 20, "ask": 12, "replica": 60, "router": 60}
"""By the first word of a target; stateless targets get more."""
INPUTS_OF_DECODERS = 120

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def swarm():
    """One swarm for all streams: creating it takes longer than the inputs."""
    made = Swarm()
    yield made
    made.close()


# Coverage of registered kinds


def kinds(base=Message):
    for kind in base.__subclasses__():
        if kind.__module__.startswith("protocol."):
            yield kind.kind
        yield from kinds(kind)


def test_every_kind_of_message_has_a_target():
    assert {f"message:{kind}" for kind in kinds()} <= COVERED


def test_both_ends_of_every_stream_protocol_have_a_target():
    ends = {f"stream:{one.word}:opener" for one in STREAM_PROTOCOLS}
    ends |= {f"stream:{one.word}:acceptor" for one in STREAM_PROTOCOLS if one.acceptor_bytes_max}
    assert ends <= COVERED


def test_a_daemon_serves_the_stream_protocols_of_the_table_alone(swarm):
    transport = swarm.world.network.running(swarm.world.machines[RELAY].host.peer_id)
    run_id = swarm.daemon.replica.run_id
    assert set(transport._handlers) == {one.on(run_id) for one in STREAM_PROTOCOLS}


def test_what_is_guided_needs_no_daemon():
    modules = {f"tests.fuzz.{name}" for name in guided.MODULES}
    for target in TARGETS.values():
        assert target.lasting or target.start.__module__ in modules


# A few inputs for each target


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_inputs(name, swarm, monkeypatch):
    monkeypatch.setattr(streams, "Swarm", lambda: swarm)
    session, rng = TARGETS[name].start(), Random(f"{SEED}/{name}")
    accepted = 0
    for _ in range(INPUTS.get(name.partition("-")[0], INPUTS_OF_DECODERS)):
        accepted += session.take(session.draw(rng))
    session.check()
    if not hasattr(session, "_swarm"):
        session.close()
    if name.startswith(("envelope", "encoding", "serve", "toploc", "gossip")):
        assert accepted, "the seeds are good for nothing"


without_atheris = pytest.mark.skipif(not guided.is_there(), reason="needs pip install '.[fuzz]'")
ENGINES = ["own", pytest.param("atheris", marks=without_atheris)]


@pytest.fixture
def script(monkeypatch, capsys):
    """Run the command in this process; it starts ``python -m tests.fuzz`` for each target."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["tests.fuzz", *options])
        return command.main(), *capsys.readouterr()

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_counts_what_it_gave(tmp_path, script, engine):
    options = ["--targets", "codec", "--inputs", "600", "--engine", engine, "--json"]
    code, out, _ = script(*options, "--crashes", str(tmp_path))
    (row,) = json.loads(out)
    assert (code, row["inputs"], row["crashes"]) == (0, 600, {})
    assert 0 < row["accepted"] < 600


@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_goes_on_for_so_long(tmp_path, script, engine):
    options = ["--targets", "codec", "--minutes", "0.03", "--engine", engine, "--json"]
    code, out, _ = script(*options, "--crashes", str(tmp_path))
    (row,) = json.loads(out)
    assert (code, row["crashes"]) == (0, {})
    assert row["inputs"] >= 500


def test_a_target_that_there_is_not_is_one_line(script):
    code, _, errors = script("--targets", "nonsense")
    assert code == 2
    assert errors.startswith("no target nonsense")


# Planted faults


def planted(read, **options):
    return Target("planted", lambda: Decoder([b"seed"], read), **options)


def run_of(target, tmp_path):
    return Run(target, "own", tmp_path / "crashes", tmp_path / "input")


def fails_on(first):
    def read(data):
        if data[:1] == first:
            raise KeyError("planted")
        return True

    return read


def test_a_crash_becomes_a_file_that_repeats_it(tmp_path, capfd):
    target = planted(fails_on(b"\xff"))
    found = fuzzed(run_of(target, tmp_path), 20_000, 60.0, SEED)
    ((what, path),) = found.crashes.items()
    assert "KeyError at" in what
    assert f"--repeat {path}" in capfd.readouterr().err
    with pytest.raises(KeyError, match="planted"):
        repeated(Path(path), {"planted": target})


class Sum:
    """Fails once its inputs contain three, whatever they were."""

    def __init__(self):
        self.count = 0

    def draw(self, rng):
        return rng.randbytes(2)

    def take(self, data):
        self.count += 1
        return True

    def check(self):
        if self.count >= 3:
            raise BrokenBoundError("more than two")

    def close(self):
        pass


def test_a_crash_of_a_session_that_lasts_is_repeated_with_all_that_came_before(tmp_path):
    target = Target("planted", Sum, lasting=3)
    found = fuzzed(run_of(target, tmp_path), 4, 60.0, SEED)
    (path,) = found.crashes.values()
    assert len(msgpack.unpackb(Path(path).read_bytes())["inputs"]) == 3
    with pytest.raises(BrokenBoundError):
        repeated(Path(path), {"planted": target})


def test_growth_and_slowness_are_found(tmp_path):
    def slow_and_large(data):
        held = bytearray(b"x") * (96 << 20)
        until = time.process_time() + 1.1
        while time.process_time() < until:
            pass
        return bool(held)

    run = run_of(planted(slow_and_large), tmp_path)
    run.take(b"any")
    words = {what.partition(":")[0] for what in run.found.crashes}
    assert words == {"growth", "slow"}
    assert run.found.growth_bytes >= 64 << 20


def test_the_last_input_outlives_its_process(tmp_path):
    run_of(planted(lambda _data: True), tmp_path).take(b"the last")
    assert left_in(tmp_path / "input") == b"the last"
