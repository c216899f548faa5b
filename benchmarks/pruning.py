"""Post-pruning against the training it follows."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import torch

from benchmarks.steps import trainer_of
from tinysubnets import scenarios
from tinysubnets.experiments import methods, recipe
from tinysubnets.method import compress
from tinysubnets.method.compress import Compressor
from tinysubnets.method.pruning import PruningSettings, result_of

EPOCHS = 50


def share_of_training(network: str, batch: int, device: torch.device) -> dict[str, Any]:
    """Fifty iterations of Algorithm 2 over fifty epochs of training.

    The objective counts bytes alone, so that every step is kept and every one must be measured.
    """
    num_steps = 211 if network == "mlp" else 35
    trainer = trainer_of(network, batch, num_steps, device)
    trainer.epoch()
    seconds = min(trainer.epoch().seconds for _ in range(2))
    work = Compressor(trainer.module, trainer.training)
    own = work.encode(work.mask, 4)
    settings, path = PruningSettings(alpha=0.0, beta=1.0), (0, "task", 0)
    result_of(work.prune(own, 4, settings, references=(), path=path))  # once to warm up
    begin = time.perf_counter()
    pruned = result_of(work.prune(own, 4, settings, references=(), path=path))
    pruning_s = time.perf_counter() - begin
    return {
        "what": f"post-pruning 50 iterations over {EPOCHS} epochs, {network}",
        "ratio": pruning_s / (EPOCHS * seconds),
        "target": "<= 0.03",
        "pruning_s": pruning_s,
        "measured": pruned.num_kept + 1,
        "epoch_s": seconds,
    }


def few_images(data: str | None, num_tasks: int = 3, *more: str) -> dict[str, Any]:
    """AlexNet on split CIFAR-100 with 1,000 images a task and 5 epochs, on a CPU.

    Short training on few images: the case in which post-pruning weighs most. Once by stages, that
    is, with what comes before a changed layer remembered, and once by whole passes, of which
    accuracy on test data and bytes are the same within noise.

    - `more`: further settings, as for `--set`.
    """
    chosen = recipe.load(
        "best/split-cifar100-paper-network",
        assignments=[
            "data.train_limit=1000",
            "training.epochs=5",
            f"data.num_tasks={num_tasks}",
            *more,
        ],
    )
    scenario = scenarios.build(chosen.scenario, chosen.data, seed=0, root=data)
    staged = _learned(chosen, scenario)
    with mock.patch.object(compress, "stages_of", lambda _: []):
        whole = _learned(chosen, scenario)
    return {
        "what": "post-pruning over training, alexnet, 1,000 CIFAR-100 images a task, 5 epochs",
        "ratio": staged["pruning_s"] / staged["training_s"],
        "target": "<= 0.25",
        **{f"{name}_by_stages": value for name, value in staged.items()},
        **{f"{name}_whole": value for name, value in whole.items()},
    }


def _learned(chosen: recipe.Recipe, scenario: scenarios.Scenario) -> dict[str, float]:
    """Seconds of training and of post-pruning, accuracy on test data in percent, and kilobytes."""
    num_tasks = len(scenario.names)
    shape = tuple(scenario.task(0).train.inputs(slice(0, 1)).shape)
    learner = methods.build(
        chosen.method,
        recipe.build_architecture(chosen, shape, 0),
        settings=chosen.learner,
        training=chosen.training,
        pruning=chosen.pruning,
        device="cpu",
        seed=0,
    )
    training_s = pruning_s = accuracy = 0.0
    for number in range(num_tasks):
        learner.learn(task := scenario.task(number))
        report = learner.reports[task.name]
        training_s += report.training_seconds
        pruning_s += report.pruning_seconds
        accuracy += 100 * learner.evaluate(task).accuracy / num_tasks
    size_kB = learner.ledger().total.total / 8e3
    return {
        "training_s": training_s,
        "pruning_s": pruning_s,
        "accuracy": accuracy,
        "kB": size_kB,
    }
