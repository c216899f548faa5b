"""Few images: which epoch to keep, whether to post-prune, and how large a network to take.

    python -m benchmarks.few_images --data DIR --samples 60,150,450
    python -m benchmarks.few_images --data DIR --samples 150 --side 32 --networks

Tasks of three classes drawn from CIFAR-10, a tenth of the samples to validate with, 300 other
images to measure on. Every line is a mean over the same tasks, with its standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from tinysubnets import Architecture, Task, TinySubNets, networks
from tinysubnets.datasets.loaders import DecodedSet, load

CLASSES, NUM_TEST = 3, 100  # of a task, and test images of each class


def draw(source: DecodedSet, samples: int, side: int, seed: int) -> Task:
    """A task of so many images of `side` pixels, from the seed."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(source.classes))[:CLASSES]
    orders = [rng.permutation(np.flatnonzero(source.labels == c)) for c in chosen]
    train = np.concatenate([order[: samples // CLASSES] for order in orders])
    test = np.concatenate([order[-NUM_TEST:] for order in orders])

    def part(where: np.ndarray) -> tuple[Any, np.ndarray]:
        images = torch.from_numpy(np.asarray(source.inputs[where])).float()
        small = avg_pool2d(images, images.shape[-1] // side).round().byte()
        return small, source.labels[where]

    return Task.from_arrays("few", *part(train), test=part(test), seed=seed)


def measure(tasks: list[Task], network: tuple[str, dict[str, Any]], **settings: Any) -> str:
    """Accuracy, bytes and seconds of TinySubNets on each of the tasks, as means."""
    rows = []
    for seed, task in enumerate(tasks):
        architecture = Architecture(networks.build(network[0], **network[1]))
        learner = TinySubNets(architecture, seed=seed, **settings)
        report = learner.learn(task)
        size = learner.ledger().total.total / 8
        rows.append((100 * learner.evaluate(task).accuracy, size, report.training_seconds))
    accuracies, sizes, seconds = zip(*rows, strict=True)
    error = statistics.stdev(accuracies) / math.sqrt(len(rows)) if len(rows) > 1 else math.nan
    accuracy, size, duration = map(statistics.mean, (accuracies, sizes, seconds))
    return f"{accuracy:6.2f} ± {error:.2f} %  {size:9,.0f} bytes  {duration:6.1f} s"


def main() -> None:
    """Print a table of what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="local folder of data sets")
    parser.add_argument("--name", default="local/cifar10_small", help="the data set")
    parser.add_argument("--samples", default="60,150,450", help="images of a task, validation too")
    parser.add_argument("--side", type=int, default=16, help="pixels, 16 or 32")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--kept", default="accuracy,loss,last", help="values of kept_epoch")
    parser.add_argument("--networks", action="store_true", help="compare networks instead")
    options = parser.parse_args()
    source, side = load(options.name, root=options.data), options.side
    small = {"in_channels": 3, "image_size": side, "convolutions": (side // 4).bit_length() - 1}
    alexnet = {"in_channels": 3, "image_size": side, "hidden": 512}
    for samples in map(int, options.samples.split(",")):
        tasks = [draw(source, samples, side, seed) for seed in range(options.tasks)]
        if options.networks:
            for network in (("small-cnn", small), ("alexnet", alexnet)):
                found = measure(tasks, network, epochs=options.epochs, kept_epoch="last")
                print(f"{samples:5} images  {network[0]:12} {found}", flush=True)
            continue
        for post_pruning in (True, False):
            for kept in options.kept.split(","):
                how = {"kept_epoch": kept, "post_pruning": post_pruning, "epochs": options.epochs}
                found = measure(tasks, ("small-cnn", small), **how)
                print(f"{samples:5} images  {kept:9} pruned {post_pruning!s:6} {found}", flush=True)


if __name__ == "__main__":
    main()
