"""Tracking of a run in TensorBoard event files, beside the JSON lines that every run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinysubnets.errors import SettingError
from tinysubnets.experiment import Event, Finished, TaskLearned
from tinysubnets.run_folder import explained
from tinysubnets.training import EpochReport


class TensorBoard:
    """A writer of event files in `tensorboard/` of a run folder; closed when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with explained(folder):
            self.writer = summary_writer()(str(folder / "tensorboard"))

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, also where a run was stopped."""
        with explained(self.folder):
            self.writer.close()

    def show(self, event: Event) -> None:
        """Write one event of a run."""
        with explained(self.folder):
            self._write(event)

    def _write(self, event: Event) -> None:
        if isinstance(event, EpochReport):
            for name in ("loss", "valid_loss", "valid_accuracy", "learning_rate"):
                self.writer.add_scalar(f"{event.task}/{name}", getattr(event, name), event.epoch)
        elif isinstance(event, TaskLearned):
            for task, accuracy in enumerate(event.row[: event.index + 1]):
                if accuracy is not None:
                    self.writer.add_scalar(f"accuracy/task_{task}", accuracy, event.index)
        elif isinstance(event, Finished):
            for name, value in event.result["metrics"].items():
                if value is not None:
                    self.writer.add_scalar(f"metrics/{name}", value)


def summary_writer() -> Any:
    """The class of writers; an error that names the extra where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingError(
            "--tensorboard needs tensorboard, which is not installed. "
            "Install it with: pip install 'tinysubnets[tensorboard]'"
        ) from error
    return SummaryWriter
