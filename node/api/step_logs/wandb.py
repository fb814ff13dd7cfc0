"""Log of training steps as a run of Weights & Biases.

Without ``WANDB_MODE`` or ``WANDB_API_KEY`` in the environment the run is offline: it needs neither
account nor network, and ``wandb sync DIRECTORY`` uploads it later. All starts of a node use one run
id, so W&B shows one run.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from node.api.step_logs.base import PREFIX, StepLog
from node.local.datadir import write_atomically
from roles.runtime.training_steps import TrainingStep

PROJECT = "prime-node"
FLUSH_SECONDS = 1.0
"""Flush interval, the possible loss at ``kill -9``; W&B's default is 15 s."""

MARK = "prime-node-version"
"""File with the newest version passed to W&B, whose own files have no stable reader."""


class WeightsAndBiases(StepLog):
    """Logs to the run ``run_id``; ``about`` goes into the run's configuration.

    W&B keeps its files in ``wandb`` of ``directory``.
    """

    def __init__(self, directory: Path, run_id: str, about: Mapping[str, str]) -> None:
        self._directory = directory
        self._mark = directory / "wandb" / MARK
        self._run_id = run_id
        self._about = about
        self._run: Any = None

    @override
    def open(self) -> int:
        self._mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError, ValueError):
            return int(self._mark.read_text())
        return 0

    @override
    def write(self, steps: Sequence[TrainingStep]) -> None:
        if self._run is None:  # opened late, so that a start without new versions adds no run
            self._run = self._begun()
        for step in steps:
            values = {PREFIX + name: value for name, value in step.statistics.items()}
            self._run.log(values | {"_timestamp": step.ended_at}, step=step.version, commit=True)
        write_atomically(self._mark, f"{steps[-1].version}\n".encode())

    def _begun(self) -> Any:
        import wandb  # noqa: PLC0415 - an extra, and it takes a second

        online = os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY")
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self._run_id,
            resume="allow" if online else None,
            mode=None if online else "offline",
            dir=str(self._directory),
            config=dict(self._about),
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_transaction_log_flush_interval=FLUSH_SECONDS,
                # Upload nothing about this machine or its user.
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )

    @override
    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()
