"""systemd unit: verified by systemd's own checker, and run by a systemd in a container."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from node.local.errors import ExitCode
from tests.deploy.packages import needs

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/prime-node@.service"

SITE = Path(sysconfig.get_path("purelib")).resolve()
OURS = (Path(sys.base_prefix), ROOT, SITE)
PYTHON = f"{sys.base_prefix}/bin/python3"

PROGRAM = f"""#!/bin/sh
export PYTHONPATH={ROOT}:{SITE} OMP_NUM_THREADS=1
exec {PYTHON} -P -c 'import prime_node, sys; sys.exit(prime_node.main())' "$@"
"""

CONFIG = """
roles = ["relay"]
initial_peers = ["/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"]
run_id = "0000000000000000000000000000000000000000000000000000000000000000"
"""
"""A node that waits for a peer that never appears."""

IN_JAIL = """
import sys
from roles.environments.jail import Jail
Jail(libraries=False)
sys.stdout.write("jailed")
"""

SCENARIO = r"""
import json, pathlib, signal, subprocess, time

def systemctl(*arguments):
    return subprocess.run(["systemctl", *arguments], capture_output=True, text=True).stdout

def shown(name):
    names = "ActiveState,SubState,StatusText,NRestarts,MainPID,Result,ExecMainStatus"
    lines = systemctl("show", f"prime-node@{name}", "-p", names).splitlines()
    return dict(line.split("=", 1) for line in lines)

def until(name, what, seconds=150):
    ends_at = time.monotonic() + seconds
    while not what(now := shown(name)) and time.monotonic() < ends_at:
        time.sleep(0.2)
    return now

told = {}
systemctl("start", "--no-block", "prime-node@home")
told["activating"] = until("home", lambda now: now["StatusText"])
told["started"] = until("home", lambda now: now["ActiveState"] == "active")
pid = int(told["started"]["MainPID"])
children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
told["children"] = [
    "NOTIFY_SOCKET" in pathlib.Path(f"/proc/{child}/environ").read_text() for child in children
]
told["user"] = pathlib.Path(f"/proc/{pid}").owner()
time.sleep(8)
told["after the watchdog's time"] = shown("home")
__import__("os").kill(pid, signal.SIGSTOP)
until("home", lambda now: now["NRestarts"] != "0")
told["restarted"] = until("home", lambda now: now["ActiveState"] == "active")
systemctl("stop", "prime-node@home")
told["stopped"] = shown("home")
systemctl("start", "prime-node@wrong")
time.sleep(4)
told["refused"] = shown("wrong")
systemctl("start", "prime-node@jail")
told["jail"] = shown("jail")
told["journal"] = subprocess.run(
    ["journalctl", "--no-pager", "-n", "60", "-o", "cat"], capture_output=True, text=True
).stdout
pathlib.Path("/results/told.json").write_text(json.dumps(told))
"""


def section(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str
    parser.read(UNIT)
    return parser[name]


@needs("systemd-analyze", "systemd")
def test_systemd_reads_every_line_of_the_unit(tmp_path):
    program = tmp_path / "prime-node"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/prime-node/bin/prime-node", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_somebody_must_mend_is_not_restarted():
    codes = {int(code) for code in section("Service")["RestartPreventExitStatus"].split()}
    mend = {ExitCode.USAGE, ExitCode.LOCKED, ExitCode.KEY_PERMISSIONS, ExitCode.CONFIG}
    mend.add(ExitCode.HISTORY)
    assert codes == mend
    assert section("Service")["Restart"] == "on-failure"


def tree(folder, results):
    """Make the root of a system with the programs of this machine."""
    for name in ("etc/prime-node", "usr", "opt/prime-node/bin", "var/lib", "tmp", "proc", "sys",
                 "dev", "run", "root", "results"):  # fmt: skip
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    etc, units = folder / "etc", folder / "etc/systemd/system"
    units.mkdir(parents=True)
    shutil.copy("/usr/lib/os-release", etc / "os-release")
    # With an id it is no first boot, at which Debian enables all units.
    (etc / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    ids = ("root:x:0:", "prime-node:x:990:", "nogroup:x:65534:")
    (etc / "group").write_text("".join(f"{line}\n" for line in ids))
    ids = ("root:x:0:0::/:/bin/sh", "prime-node:x:990:990::/var/lib/prime-node:/bin/false",
           "nobody:x:65534:65534::/:/bin/false")  # fmt: skip
    (etc / "passwd").write_text("".join(f"{line}\n" for line in ids))
    (etc / "prime-node/home.toml").write_text(CONFIG)
    (etc / "prime-node/wrong.toml").write_text("no_such_key = 1\n")
    program = folder / "opt/prime-node/bin/prime-node"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    shutil.copy(UNIT, units / UNIT.name)
    # An interpreter may lie in a user's home.
    drop_in(
        units,
        "prime-node@",
        "WatchdogSec=6\nRestartSec=1\n"
        f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(map(str, OURS))}",
    )
    (folder / "opt/jail.py").write_text(IN_JAIL)
    drop_in(
        units,
        "prime-node@jail",
        f"Type=oneshot\nRestart=no\nEnvironment=PYTHONPATH={ROOT}:{SITE}\n"
        f"ExecStart=\nExecStart={PYTHON} -P /opt/jail.py",
    )
    (results / "scenario.py").write_text(SCENARIO)
    (units / "scenario.service").write_text(
        "[Unit]\nDefaultDependencies=no\nAfter=basic.target\n[Service]\nType=oneshot\n"
        f"ExecStart={PYTHON} /results/scenario.py\nExecStopPost=systemctl poweroff\n"
    )


def drop_in(units, name, text):
    (units / f"{name}.service.d").mkdir()
    (units / f"{name}.service.d/{name}.conf").write_text(f"[Service]\n{text}\n")


@pytest.mark.live
@pytest.mark.slow
@needs("systemd-nspawn", "systemd-container")
@needs("dbus-daemon", "dbus")
@needs("bwrap", "bubblewrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start systemd-nspawn")
def test_a_node_lives_under_systemd(tmp_path):
    """Started, watched, restarted when its loop hangs, stopped, and refused for good."""
    results = tmp_path / "results"
    results.mkdir()
    tree(tmp_path / "root", results)
    binds = {"/usr", *map(str, OURS)}
    done = subprocess.run(
        [
            *("systemd-nspawn", "--register=no", "--keep-unit", "--private-network", "--quiet"),
            *(f"--bind-ro={path}" for path in sorted(binds)),
            *(f"--bind={results}:/results", f"--directory={tmp_path / 'root'}", "--console=pipe"),
            *("--boot", "systemd.unit=basic.target", "systemd.wants=scenario.service"),
        ],
        # In a container the older hierarchy does not report the end of a process group.
        env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=450,
    )
    if not (results / "told.json").exists():
        pytest.fail(f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    told = json.loads((results / "told.json").read_text())
    repeat = told["journal"]
    assert told["activating"]["StatusText"].startswith("starting: "), repeat
    assert told["started"]["StatusText"].startswith("joining"), repeat
    assert told["user"] == "prime-node"
    assert told["children"], repeat
    assert not any(told["children"])
    before = told["after the watchdog's time"]
    assert (before["NRestarts"], before["ActiveState"]) == ("0", "active"), repeat
    assert told["restarted"]["NRestarts"] == "1", repeat
    assert told["restarted"]["MainPID"] != told["started"]["MainPID"]
    assert told["stopped"]["Result"] == "success", repeat
    assert told["refused"]["NRestarts"] == "0"
    assert told["refused"]["ExecMainStatus"] == str(int(ExitCode.CONFIG)), repeat
    assert told["jail"]["Result"] == "success", repeat
