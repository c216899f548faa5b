"""A cross-check of baselines against Avalanche: permuted digits, one head, the same everything.

    python -m venv check && check/bin/pip install -r benchmarks/avalanche_requirements.txt .
    check/bin/python -W ignore benchmarks/avalanche_check.py

Both sides get the same network and starting weights, data, whole batches of one size, optimizer
(SGD without momentum, so that no state is carried) and epochs, and use the last epoch. Where
a hyperparameter means something else there, it is converted; EWC takes the empirical Fisher
information of single samples on both sides; Avalanche's SI is mended (see below). Prints one line
per method: the mean accuracy over all tasks at the end, mean of the seeds, theirs, ours and the
difference in points.

With `--declare-ops` the compiled operators of torchvision are declared and not loaded: for
a torchvision whose build does not match torch. Nothing here uses them.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from tinysubnets.experiments.methods import build
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task

OPERATORS = (
    "roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool "
    "_roi_pool_backward ps_roi_pool _ps_roi_pool_backward nms qnms qroi_align deform_conv2d "
    "_deform_conv2d_backward"
)
METHODS = ("naive", "replay", "cumulative", "si", "ewc", "lwf", "cwr-star")
RATE, BATCH, MEMORY = 0.05, 32, 200
NUM_TRAIN = 992  # whole batches: ours fills the last one up, Avalanche leaves it short
STRENGTH = {"si": 0.5, "ewc": 30.0, "lwf": 1.0}
DAMPING = 0.1


def network(width: int = 100) -> nn.Module:
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    net.add_module("fc", nn.Linear(width, 10))
    return net


def permuted(seed: int, num_tasks: int) -> list[Task]:
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    tasks = []
    for number in range(num_tasks):
        columns = np.random.default_rng((seed, number)).permutation(64)
        z = x[:, columns]
        valid, test = (z[1000:1100], y[1000:1100]), (z[1100:], y[1100:])
        pair, plain = (z[:NUM_TRAIN], y[:NUM_TRAIN]), Normalization()
        tasks.append(
            Task.from_arrays(f"p{number}", *pair, valid=valid, test=test, normalization=plain)
        )
    return tasks


def ours(method: str, tasks: list[Task], seed: int, epochs: int) -> tuple[float, dict]:
    """Our mean accuracy at the end, and the weights that both sides start from."""
    settings: dict = {"scenario_type": "domain-IL"}
    if method in STRENGTH:
        name = "distillation_weight" if method == "lwf" else "penalty_weight"
        settings[name] = STRENGTH[method]
    if method == "si":
        settings["damping"] = DAMPING
    if method == "ewc":
        settings |= {"fisher_samples": NUM_TRAIN, "fisher": "empirical"}
    if method == "replay":
        settings["buffer_size"] = MEMORY
    training = {
        "epochs": epochs, "batch_size": BATCH, "optimizer": "sgd", "lr": RATE,
        "min_lr": RATE, "schedule": "constant",
    }  # fmt: skip
    learner = build(
        method, Architecture(network()), settings=settings, training=training, seed=seed
    )
    start = learner.fresh(10)
    for task in tasks:
        trainer = learner.begin(task)
        while not trainer.finished:
            trainer.epoch()
        trainer.training.best = {}  # Avalanche takes the last epoch
        trainer.finish()
    return mean_accuracy(lambda x: learner.logits(None, x), tasks), start


def mean_accuracy(answer, tasks: list[Task]) -> float:
    shares = []
    for task in tasks:
        with torch.no_grad():
            chosen = answer(task.test.inputs()).argmax(1)
        shares.append(float((chosen == task.test.labels).float().mean()))
    return float(np.mean(shares))


def theirs(method: str, tasks: list[Task], start: dict, seed: int, epochs: int) -> float:
    """Avalanche's mean accuracy at the end, from the given weights."""
    from avalanche.benchmarks.scenarios.deprecated.generators import tensors_benchmark
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training import supervised
    from avalanche.training.plugins import (
        EvaluationPlugin,
        EWCPlugin,
        SynapticIntelligencePlugin,
    )
    from avalanche.training.utils import copy_params_dict

    @torch.no_grad()
    def copied_weights(model, target, excluded):
        for name, parameter in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
            target[name].data = parameter.detach().flatten().clone()

    # On a CPU version 0.6.0 keeps views of the weights instead of copies: old and new weights are
    # then the same, every path integral is 0, and SI is Naive.
    SynapticIntelligencePlugin.extract_weights = staticmethod(copied_weights)

    class UnclippedSI(SynapticIntelligencePlugin):
        """Avalanche cuts every importance off at 0.001, which is not in the paper."""

        def after_training_exp(self, strategy, **kwargs):
            self.update_ewc_data(
                strategy.model, self.ewc_data, self.syn_data, np.inf, self.excluded_parameters, 1,
                eps=self.eps,
            )  # fmt: skip

    class PerSampleEWC(EWCPlugin):
        """Avalanche squares the gradients of batches; the Fisher information wants samples."""

        def after_training_exp(self, strategy, **kwargs):
            counter = strategy.clock.train_exp_counter
            found = self.compute_importances(
                strategy.model, strategy._criterion, strategy.optimizer,
                strategy.experience.dataset, strategy.device, 1,
            )  # fmt: skip
            self.update_importances(found, counter)
            self.saved_params[counter] = copy_params_dict(strategy.model)

    torch.manual_seed(seed)
    net = network()
    net.load_state_dict(start)
    pairs = [(t.train.inputs(), t.train.labels) for t in tasks]
    benchmark = tensors_benchmark(
        train_tensors=pairs, test_tensors=pairs[:1], task_labels=[0] * len(tasks)
    )
    common = {
        "model": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=RATE),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": BATCH,
        "train_epochs": epochs,
        "evaluator": EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    }
    kinds = {
        "naive": (supervised.Naive, {}),
        "replay": (supervised.Replay, {"mem_size": MEMORY}),
        "cumulative": (supervised.Cumulative, {}),
        # λ/2 · Ω there, c · Ω here
        "si": (supervised.Naive, {"plugins": [UnclippedSI(2 * STRENGTH["si"], eps=DAMPING)]}),
        # λ · F there, λ/2 · F here
        "ewc": (supervised.Naive, {"plugins": [PerSampleEWC(STRENGTH["ewc"] / 2)]}),
        "lwf": (supervised.LwF, {"alpha": STRENGTH["lwf"], "temperature": 2}),
        "cwr-star": (supervised.CWRStar, {"cwr_layer_name": None}),
    }
    kind, extra = kinds[method]
    strategy = kind(**common, **extra)
    for experience in benchmark.train_stream:
        strategy.train(experience, num_workers=0)
    net.eval()
    return mean_accuracy(net, tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--declare-ops", action="store_true")
    options = parser.parse_args()
    if options.declare_ops:
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS.split():
            library.define(f"{name}(Tensor a) -> Tensor")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| method | Avalanche | ours | difference, points |\n|---|---|---|---|", flush=True)
    for method in options.methods.split(","):
        table = []
        for seed in range(options.seeds):
            tasks = permuted(seed, options.tasks)
            mine, start = ours(method, tasks, seed, options.epochs)
            table.append((theirs(method, tasks, start, seed, options.epochs), mine))
        (a, b), (da, db) = np.mean(table, 0) * 100, np.std(table, 0, ddof=1) * 100
        print(f"| {method} | {a:.2f} ± {da:.2f} | {b:.2f} ± {db:.2f} | {b - a:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
