"""Child processes of a benchmark: orders and responses in lines of JSON."""

import asyncio
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from lines import Host


class Child:
    """A process on a host; ``log`` is its standard error."""

    def __init__(self, host: Host, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._popen = subprocess.Popen(
                host.command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._said.put(line)
        self._said.put("")

    def tell(self, order: Any) -> None:
        """Send an order."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()

    def said(self, seconds: float) -> Any:
        """Return its next response; raises ``RuntimeError`` at the timeout."""
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            line = ""
        if not line:
            raise RuntimeError(f"{self._log}: no answer: {self._log.read_text()[-2000:]}")
        return json.loads(line)

    def ask(self, order: Any, seconds: float) -> Any:
        """Send an order and return the response."""
        self.tell(order)
        return self.said(seconds)

    def end(self) -> None:
        """Close its input, which ends it, or kill it."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def itself(process: str, **arguments: Any) -> list[str]:
    """Return the command that starts this script as one of its processes."""
    return [sys.executable, sys.argv[0], "--process", process, "--arguments", json.dumps(arguments)]


# In the child


def say(answer: Any) -> None:
    """Send a response."""
    print(json.dumps(answer), flush=True)


async def heard() -> Any:
    """Return the next order; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None
