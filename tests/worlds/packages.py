"""Environment packages, installed from handmade wheels."""

import base64
import hashlib
import sys
from importlib.metadata import PackageNotFoundError, version
from zipfile import ZipFile

import pytest


def _has_verifiers():
    try:
        return version("verifiers").startswith("0.4.")
    except PackageNotFoundError:
        return False


needs_verifiers = pytest.mark.skipif(
    not _has_verifiers(), reason="the extra verifiers (verifiers 0.4) is not installed"
)

SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 10)


class SumConfig(vf.TasksetConfig):
    terms: int = 2


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for n in range(1, 6):
            yield SumTask(
                SumData(
                    prompt=" + ".join([str(n)] * self.config.terms) + " = ?",
                    system_prompt="Say the number alone.",
                    answer=n * self.config.terms,
                ),
                self.config.task,
            )


__all__ = ["Sums"]
"""


def wheel(directory, name, files, version="1.0", metadata=""):
    """Write a wheel of these files, by name, with the RECORD that installers require."""
    known = f"{name}-{version}.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    whole = {**files, f"{known}/METADATA": about, f"{known}/WHEEL": tag}
    rows = []
    for path, text in whole.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={sha.decode()},{len(text.encode())}")
    whole[f"{known}/RECORD"] = "\n".join([*rows, f"{known}/RECORD,,"]) + "\n"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for inside, text in whole.items():
            archive.writestr(inside, text)
    return path


def install(monkeypatch, directory, name, files, **options):
    """Unpack a wheel into a directory of ``sys.path``, as installers do."""
    directory.mkdir(exist_ok=True)
    made = wheel(directory, name, files, **options)
    with ZipFile(made) as archive:
        archive.extractall(directory)
    made.unlink()
    if str(directory) not in sys.path:
        monkeypatch.syspath_prepend(str(directory))
    return directory
