"""Where the time of an epoch goes: steps, codebooks, validation, and the kernels of all of it.

    python -m benchmarks.profile_epoch best/split-cifar100 --set network.width=24

A recipe's first task on random data of its shape, in the last quarter of its epochs, where values
are rounded; times are medians on an otherwise idle device.
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps import SHAPES, median_ms, synthetic_task
from tinysubnets.experiments import methods, recipe
from tinysubnets.training.loop import Training

SHOWN = 40  # kernels


def training_of(name: str, assignments: list[str], samples: int, device: torch.device) -> Training:
    """A training by a recipe, three quarters of it done."""
    chosen = recipe.load(name, assignments=assignments)
    network = str(chosen.network["name"])
    if network not in SHAPES:
        raise SystemExit(f"network {network!r} is not known here; give one of {', '.join(SHAPES)}.")
    learner = methods.build(
        chosen.method,
        recipe.build_architecture(chosen, (samples, *SHAPES[network]), 0),
        settings=chosen.learner,
        training=chosen.training,
        device=device,
    )
    training: Training = learner.begin(synthetic_task(network, samples)).training  # type: ignore[attr-defined]
    while training.progress.epoch < 0.75 * training.settings.epochs:
        training.epoch()
    return training


def parts(training: Training) -> dict[str, float]:
    """Milliseconds of an epoch and of its parts."""
    device, updates = training.device, len(training.epoch_schedule()[1])
    whole = median_ms(training.epoch, device, 3)
    codebooks = updates * median_ms(training.update_codebooks_, device, 5)
    validation = median_ms(training.validate, device, 5)
    return {
        "epoch": whole,
        f"{updates} codebook updates": codebooks,
        "validation": validation,
        f"the rest in {training.num_steps} steps": whole - codebooks - validation,
    }


def kernels(training: Training) -> list[str]:
    """The kernels of an epoch, on a CPU torch's operations, by their time."""
    on_gpu = training.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        training.epoch()  # waits for its loss
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = sorted(found.key_averages(), key=lambda e: -getattr(e, by))
    total = sum(getattr(e, by) for e in averages)
    lines = [f"{total / 1e3:9.2f} ms in {sum(e.count for e in averages)} kernels"]
    for event in averages[:SHOWN]:
        lines.append(f"{getattr(event, by) / 1e3:9.2f} ms {event.count:7} x {event.key[:110]}")
    return lines


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="best/split-cifar100")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--samples", type=int, default=5000, help="of the task, a tenth validates")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    training = training_of(options.recipe, options.set, options.samples, device)
    for name, ms in parts(training).items():
        print(f"{ms:9.2f} ms {name}")
    print(*kernels(training), sep="\n")


if __name__ == "__main__":
    main()
