"""The search for the strengths of SI, EWC and LwF, by validation accuracy alone.

    python benchmarks/baseline_search.py permuted-digits --scenario-type domain-IL
    python benchmarks/baseline_search.py permuted-mnist --scenario-type domain-IL --tasks 5 \\
        --set training.epochs=3

Every strength learns the first tasks of the scenario; the number printed is the mean accuracy over
their validation data at the end, mean of the seeds. Test data are not looked at.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from tinysubnets import scenarios
from tinysubnets.experiments import methods as learners
from tinysubnets.experiments import recipe
from tinysubnets.experiments import recipe as plan
from tinysubnets.tasks.task import Task

STRENGTHS = {
    "si": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    "ewc": (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10000.0),
    "lwf": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
}


def valid_accuracy(learner, task: Task) -> float:
    inputs, labels = task.valid.inputs(), task.valid.labels
    name = task.name if learner.scenario_type == "task-IL" else None
    return float((learner.logits(name, inputs).argmax(1) == labels).float().mean())


def final_accuracy(method: str, strength: float, options: argparse.Namespace, seed: int) -> float:
    weight = "distillation_weight" if method == "lwf" else "penalty_weight"
    changes = [f"{method}.{weight}={strength}", f"{method}.scenario_type={options.scenario_type}"]
    changes += options.set
    chosen = recipe.load(options.scenario, method=method, assignments=changes)
    scenario = scenarios.build(chosen.scenario, chosen.data, seed=seed, root=options.data)
    tasks = [scenario.task(i) for i in range(min(options.tasks, len(scenario.names)))]
    shape = tuple(tasks[0].train.inputs(slice(0, 1)).shape)
    learner = learners.build(
        method,
        plan.build_architecture(chosen, shape, seed),
        settings=chosen.learner,
        training=chosen.training,
        device=options.device,
        seed=seed,
    )
    for task in tasks:
        learner.learn(task)
    return float(np.mean([valid_accuracy(learner, task) for task in tasks]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("scenario")
    parser.add_argument("--scenario-type", default="task-IL", choices=("task-IL", "domain-IL"))
    parser.add_argument("--methods", default="si,ewc,lwf")
    parser.add_argument("--strengths", type=lambda t: [float(v) for v in t.split(",")])
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="a change of the recipe")
    parser.add_argument("--data")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for method in options.methods.split(","):
        for strength in options.strengths or STRENGTHS[method]:
            runs = [final_accuracy(method, strength, options, s) for s in range(options.seeds)]
            print(f"| {method} | {strength:g} | {100 * np.mean(runs):.2f} |", flush=True)


if __name__ == "__main__":
    main()
