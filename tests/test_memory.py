"""Memory: large data sets stay on disk, and only a task at a time is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# All of Tiny-ImageNet in size: bytes of zeros take no room on disk, but every one that is read
# counts as memory all the same.
SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from tinysubnets.experiments import recipe
from tinysubnets.datasets.loaders import DecodedSet
from tinysubnets.experiments.run import Experiment, TaskLearned
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.scenarios import sets

folder = Path(sys.argv[1])

def whole(name, part, *_, **__):
    count = 100_000 if part == "train" else 10_000
    path = folder / f"{part}.npy"
    shape = (count, 3, 64, 64)
    inputs = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    inputs[:: count // 200, 0, 0, 0] = 255
    return DecodedSet(inputs, np.arange(count) % 200, tuple(map(str, range(200))))

sets.load_set = whole
given = ["training.epochs=1", "data.test_limit=10", "pruning.iterations=0", "tsn.bits=8"]
given += ["tsn.task_param_bits=32", "network.width=4", "network.hidden=16"]
plan = Plan(recipe.load("tiny-imagenet", assignments=given), 0, "cpu", 2)
with RunDir(folder / "run") as run:
    experiment = Experiment.begin(plan, run)
    assert len(experiment.probes) == 40
    for event in experiment.steps():
        if isinstance(event, TaskLearned):
            break
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_tiny_imagenet_needs_less_than_four_gigabytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout.split()[-1])
    assert 100_000 < kilobytes < 4 * 1024 * 1024
