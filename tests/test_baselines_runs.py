"""Whole runs of baselines: every method by the command's own machinery, saved and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from quick import mostly_slow
from run_helpers import numbers, small_options
from tinysubnets.experiments import methods as learners
from tinysubnets.experiments import recipe
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir

BASELINES = [m for m in learners.METHODS if not m.startswith("tsn")]
ONE_HEAD = ("naive", "cumulative", "replay", "gdumb", "gem", "a-gem", "ewc", "si", "lwf")


def plan(method: str, *more: str) -> Plan:
    given = small_options(*more)[1::2]
    small = recipe.load("permuted-digits", method=method, assignments=given)
    return Plan(small, seed=1, device="cpu", threads=1, checkpoint_seconds=0.0)


def run(plan: Plan, path: Path, stop_after: int | None = None) -> None:
    with RunDir(path) as folder:
        if stop_after is None:
            for _ in Experiment.begin(plan, folder).steps():
                pass
            return
        steps = Experiment.begin(plan, folder).steps()
        for _ in range(stop_after):
            next(steps)
    with RunDir(path) as folder:
        for _ in Experiment.resume(folder).steps():
            pass


@pytest.mark.slow
@pytest.mark.parametrize("method", mostly_slow(BASELINES, ["independent", "replay", "wsn"]))
def test_a_run_ends_with_a_result_and_a_model_and_the_same_if_interrupted(method, tmp_path):
    scenario_type = "domain-IL" if method in ONE_HEAD else "task-IL"
    planned = plan(method, f"{method}.scenario_type={scenario_type}")
    run(planned, tmp_path / "whole")
    result = numbers(tmp_path / "whole")
    assert result["scenario_type"] == scenario_type
    file = tmp_path / "whole" / "model" / "model.safetensors"
    assert result["capacity"]["file_bytes"] == file.stat().st_size
    assert ("wsn" in result["capacity"]) == (method == "wsn")
    run(planned, tmp_path / "resumed", stop_after=7)  # within the second of three tasks
    assert numbers(tmp_path / "resumed") == result
    if scenario_type == "task-IL":
        assert result["metrics"]["backward_transfer"] == 0.0
