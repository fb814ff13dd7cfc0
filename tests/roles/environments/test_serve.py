import json
from pathlib import Path

import pytest

import roles
from roles.environments.jail import Jail
from roles.environments.jailed.serve import LENGTH_BYTES
from roles.environments.limits import JailLimits
from tests.worlds.text import needs_jail

pytestmark = needs_jail

LIMITS = JailLimits(1.0, 2, 64 << 20, 128 << 20, 60.0, 100_000)

PROGRAM = """
import os
from pathlib import Path
from roles.environments.jailed.serve import serve, take_output

output = take_output()
print("noise", flush=True)
os.write(1, b"noise")
Path("/tmp/kept").write_text("made before anybody asked")


def check(question):
    exec(question)
    return sorted(os.listdir("/tmp") + os.listdir("/dev/shm"))


serve(output, check, 3)
"""


@pytest.fixture
async def ask():
    jail = Jail(libraries=False, sources={"roles": Path(roles.__file__).parent})
    jailed = await jail.start(PROGRAM, (), LIMITS, lasting=True)

    async def asked(question):
        encoded = json.dumps(question).encode()
        jailed.write(len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)
        length = int.from_bytes(await jailed.output.readexactly(LENGTH_BYTES), "big")
        assert length < 1000
        return json.loads(await jailed.output.readexactly(length))["answer"]

    yield asked
    jailed.kill()
    await jailed.wait()


async def test_what_is_printed_is_no_reply(ask):
    assert await ask("print('x' * 10**5, flush=True); os.write(1, b'x' * 10**5)") == ["kept"]
    everywhere = "for n in range(3, 64):\n try: os.write(n, b'forged')\n except OSError: pass"
    assert await ask(everywhere + "\nos._exit(0)") is None
    assert await ask("1") == ["kept"]


async def test_who_is_asked_reads_no_other_question(ask):
    assert await ask("assert os.read(0, 1) == b''") == ["kept"]


async def test_files_are_gone_with_the_child_that_made_them(ask):
    made = "Path('/tmp/a/b').mkdir(parents=True); Path('/tmp/a/b/c').write_text('x')\n"
    made += "os.symlink('/tmp/kept', '/dev/shm/link'); os.mkfifo('/tmp/pipe')"
    assert await ask(made) == ["a", "kept", "link", "pipe"]
    assert await ask("1") == ["kept"]
