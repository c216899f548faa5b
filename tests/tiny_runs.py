"""Small real runs for the tests of reports and tables: a few tasks of digits, few epochs."""

from __future__ import annotations

from pathlib import Path

from tinysubnets.experiments import recipe
from tinysubnets.experiments.run import Experiment, Plan
from tinysubnets.experiments.run_dir import RunDir

QUICK = ("training.epochs=2", "training.batch_size=128", "data.num_tasks=3", "pruning.iterations=5")


def make_run(folder: Path, method: str = "tsn", seed: int = 0, *settings: str) -> Path:
    """Run permuted digits to the end in a folder, in a second or two."""
    chosen = recipe.load("permuted-digits", method=method, assignments=(*QUICK, *settings))
    with RunDir(folder) as held:
        for _ in Experiment.begin(Plan(chosen, seed=seed, device="cpu", threads=1), held).steps():
            pass
    return folder
