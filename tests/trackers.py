"""Stand-ins for experiment trackers: just what the documentation uses of them, and it is counted.

They take the place of packages that are not installed, so that the examples still run.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Run:
    """A run of wandb."""

    def __init__(self, logged: list[dict[str, Any]]) -> None:
        self.logged, self.summary = logged, dict[str, Any]()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.summary

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        assert all(isinstance(value, float) for value in data.values())
        self.logged.append(data)


def wandb(logged: list[dict[str, Any]]) -> ModuleType:
    """The package wandb, as far as it is used."""

    def init(*, project: str, mode: str, config: dict[str, Any]) -> Run:
        assert project and mode in ("online", "offline", "disabled") and config
        return Run(logged)

    made = ModuleType("wandb")
    made.init = init  # type: ignore[attr-defined]
    return made


def mlflow(logged: list[dict[str, Any]]) -> ModuleType:
    """The package mlflow, as far as it is used."""

    class Active:
        def __enter__(self) -> Active:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def log_params(params: dict[str, Any]) -> None:
        assert params

    def log_metrics(metrics: dict[str, float], step: int | None = None) -> None:
        assert step and all(isinstance(value, float) for value in metrics.values())
        logged.append(metrics)

    def log_artifacts(local_dir: str, artifact_path: str | None = None) -> None:
        assert any(Path(local_dir).iterdir())

    made = ModuleType("mlflow")
    for each in (log_params, log_metrics, log_artifacts):
        setattr(made, each.__name__, each)
    made.start_run = Active  # type: ignore[attr-defined]
    return made


def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Put stand-ins in the place of trackers that are not installed; gives what they log."""
    logged: dict[str, list[dict[str, Any]]] = {}
    for make in (wandb, mlflow):
        name = make.__name__
        if importlib.util.find_spec(name) is None:
            logged[name] = []
            monkeypatch.setitem(sys.modules, name, make(logged[name]))
    return logged
