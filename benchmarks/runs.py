"""Whole runs by the command: how much of one is training, and runs side by side."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Shortened so that a benchmark takes minutes; epochs are those of the recipe.
SHORT = {
    "permuted-digits": (),
    "permuted-mnist": (),
    "split-cifar100": ("data.num_tasks=3",),
    "tiny-imagenet": ("data.num_tasks=5",),
}


def _tsn(*arguments: str) -> float:
    """Run the command; the CPU seconds it and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "tinysubnets", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def share_of_training(scenario: str, device: str, data: str | None) -> dict[str, Any]:
    """Seconds of training over seconds of everything: the command's own record of a run."""
    options = [part for text in SHORT[scenario] for part in ("--set", text)]
    options += [] if data is None else ["--data", data]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        _tsn("run", scenario, "--out", str(path), "--no-report", "--device", device, *options)
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    training_s = sum(task["training_seconds"] for task in result["tasks"])
    return {
        "what": f"training over the whole run, {scenario}",
        "ratio": training_s / result["seconds"],
        "target": ">= 0.85" if device == "cuda" else "",
        "training_s": training_s,
        "all_s": result["seconds"],
        "pruning_s": sum(task["pruning_seconds"] for task in result["tasks"]),
        "tasks": len(result["tasks"]),
    }


def beside_training(scenario: str, device: str, data: str | None, num_tasks: int) -> dict[str, Any]:
    """Seconds of a task beside its training: the median of a run, without its first task.

    Its data, trial, bit-width, post-pruning, coding, what finds it without its name, and measuring.
    """
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.recipe import Plan
    from tinysubnets.experiments.run import Experiment, TaskLearned
    from tinysubnets.experiments.run_dir import RunDir

    chosen = recipe.load(scenario, assignments=[f"data.num_tasks={num_tasks}"])
    seconds, training = [], []
    with tempfile.TemporaryDirectory() as folder, RunDir(Path(folder) / "run") as run:
        experiment = Experiment.begin(Plan(chosen, 0, device, None, data), run)
        before = time.perf_counter()
        for event in experiment.steps():
            if isinstance(event, TaskLearned):
                now = time.perf_counter()
                training.append(event.report.training_seconds)
                seconds.append(now - before - training[-1])
                before = now
    beside_s = statistics.median(seconds[1:])
    return {
        "what": f"seconds of a task beside its training, {scenario}",
        "target": "<= 0.3 s on an H200" if scenario == "tiny-imagenet" else "",
        "ratio": beside_s / statistics.median(training[1:]),
        "beside_s": beside_s,
        "first_s": seconds[0],
        "training_s": statistics.median(training[1:]),
    }


def side_by_side(num_runs: int = 4) -> dict[str, Any]:
    """CPU seconds of runs at once over those of the same runs one after the other."""
    seconds = {}
    for jobs in (1, num_runs):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--seeds", str(num_runs), "--jobs", str(jobs), "--device", "cpu"]
            options += ["--out", folder, "--no-report"]
            seconds[jobs] = _tsn("compare", "permuted-digits", "--methods", "tsn", *options)
    return {
        "what": f"CPU time of {num_runs} runs at once over one by one, permuted-digits",
        "ratio": seconds[num_runs] / seconds[1],
        "target": "<= 1.15",
        "at_once_cpu_s": seconds[num_runs],
        "one_by_one_cpu_s": seconds[1],
    }
