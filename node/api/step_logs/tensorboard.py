"""Log of training steps as TensorBoard event files, with a scalar per statistic."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from node.api.step_logs.base import PREFIX, StepLog
from roles.runtime.training_steps import TrainingStep


class TensorBoard(StepLog):
    """Writes a new event file into ``directory`` at each start, from the first missing version."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    @override
    def open(self) -> int:
        from tensorboard.summary.writer.event_file_writer import (  # noqa: PLC0415 - an extra
            EventFileWriter,
        )

        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        version = self._newest_version()
        self._writer = EventFileWriter(str(self._directory))
        return version

    def _newest_version(self) -> int:
        """Return the newest version in the event files; the last event may be truncated."""
        from tensorboard.backend.event_processing.event_file_loader import (  # noqa: PLC0415 - same
            EventFileLoader,
        )

        found = 0
        for path in self._directory.glob("events.out.tfevents.*"):
            for event in EventFileLoader(str(path)).Load():
                found = max(found, event.step)
        return found

    @override
    def write(self, steps: Sequence[TrainingStep]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra

        for step in steps:
            values = [
                Summary.Value(tag=PREFIX + name, simple_value=value)
                for name, value in step.statistics.items()
            ]
            event = Event(wall_time=step.ended_at, step=step.version, summary=Summary(value=values))
            self._writer.add_event(event)
        self._writer.flush()

    @override
    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
