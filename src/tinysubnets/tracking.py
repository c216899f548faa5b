"""Tracking of a run in TensorBoard event files, beside the JSON lines that every run writes."""

from __future__ import annotations

from pathlib import Path

from tinysubnets.errors import SettingError
from tinysubnets.experiment import Event, Finished, TaskLearned
from tinysubnets.training import EpochReport


class TensorBoard:
    """A writer of event files in `tensorboard/` of a run folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingError(
                "--tensorboard needs tensorboard, which is not installed. "
                "Install it with: pip install 'tinysubnets[tensorboard]'"
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def show(self, event: Event) -> None:
        """Write one event of a run."""
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
            self.writer.close()
