"""One training in one and in two processes, beside DistributedDataParallel on a dense network."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.steps import DenseStep, masked_epoch, trainer_of
from tinysubnets.commands.processes import environment_of, held_port
from tinysubnets.training import distributed


def processes(network: str, batch: int, steps: int, rounds: int = 5) -> dict[str, Any]:
    """One row: how much more a masked step costs than a dense one, in two processes and in one.

    The batch and the threads per process (one) are the same everywhere. Masks, quantizer and
    optimizer work on weights, not on samples, and are not divided; and a masked network sends the
    gradients of free values and of scores, so twice as much. `explained_ms` is what follows from
    that: the dense step in two processes, what masks cost in one, and the all-reduce of the
    further bytes (`sending` is the time of the all-reduces alone).
    """
    one, two = (_in_processes(n, network, batch, steps, rounds) for n in (1, 2))
    ratios = [found["masked_ms"] / found["dense_ms"] for found in (one, two)]
    further_ms = two["masked_sending_ms"] - two["dense_sending_ms"]
    return {
        "what": f"masked over dense step in two processes, {network}, batch {batch}",
        "ratio": ratios[1],
        "one_process_ratio": ratios[0],
        "speedup_masked": one["masked_ms"] / two["masked_ms"],
        "speedup_dense": one["dense_ms"] / two["dense_ms"],
        # CPU time of each process, which other work on the machine hardly changes.
        "cpu_ratio": two["masked_cpu_ms"] / two["dense_cpu_ms"],
        "one_process_cpu_ratio": one["masked_cpu_ms"] / one["dense_cpu_ms"],
        "cpu_speedup_masked": one["masked_cpu_ms"] / two["masked_cpu_ms"],
        "cpu_speedup_dense": one["dense_cpu_ms"] / two["dense_cpu_ms"],
        "explained_ms": two["dense_ms"] + one["masked_ms"] - one["dense_ms"] + further_ms,
        "masked_ms": two["masked_ms"],
        "dense_ms": two["dense_ms"],
        **{name: two[name] for name in ("masked_sending_ms", "dense_sending_ms")},
        **{name: two[name] for name in ("masked_mb", "dense_mb")},
    }


def _in_processes(count: int, *arguments: Any) -> dict[str, Any]:
    """What `_measure` finds in the first of so many processes."""
    command = [sys.executable, "-m", "benchmarks.parallel", *map(str, arguments)]
    with held_port() as port:
        started = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                env=dict(os.environ) | environment_of(rank, count, port) | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(count)
        ]
        out = [process.communicate()[0] for process in started]
    found: dict[str, Any] = json.loads(out[0])
    return found


def _measure(network: str, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    device, size = torch.device("cpu"), distributed.num_processes()
    torch.set_num_threads(1)
    # As many codebook updates as an epoch of 35 steps has.
    updates = {"codebook_updates_per_epoch": max(1, round(3 * steps / 35))}
    trainer = trainer_of(network, batch, steps, device, training=updates)
    masked = masked_epoch(trainer)
    dense = DenseStep(network, batch // size, device, compiled=False)
    if size > 1:
        dense.run = nn.parallel.DistributedDataParallel(dense.net)  # it has no buffers

    def dense_epoch() -> None:
        for _ in range(steps):
            dense.step()

    # Bytes of the gradients that travel.
    masked_bytes = sum(4 * p.numel() for ps in trainer.module.groups().values() for p in ps)
    dense_bytes = sum(4 * p.numel() for p in dense.net.parameters())
    work: dict[str, Callable[[], Any]] = {"masked": masked, "dense": dense_epoch}
    work |= {
        f"{name}_sending": _sender(count, steps)
        for name, count in (("masked", masked_bytes), ("dense", dense_bytes))
    }
    for call in work.values():
        call()
    # In turns: a machine may be now fast, now slow.
    times: dict[str, list[float]] = {f"{name}{cpu}": [] for name in work for cpu in ("", "_cpu")}
    for _ in range(rounds):
        for name, call in work.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin) / steps)
            times[f"{name}_cpu"].append(1e3 * (time.process_time() - cpu_begin) / steps)
    # The best of each: with two processes on two cores everything else is in the way.
    return {f"{name}_ms": min(found) for name, found in times.items()} | {
        "masked_mb": masked_bytes / 1e6,
        "dense_mb": dense_bytes / 1e6,
    }


def _sender(num_bytes: int, steps: int) -> Callable[[], None]:
    """The all-reduces of an epoch, and nothing else."""
    gradient = torch.zeros(num_bytes // 4)

    def send() -> None:
        for _ in range(steps if distributed.num_processes() > 1 else 0):
            dist.all_reduce(gradient)

    return send


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("network")
    for number in ("batch", "steps", "rounds"):
        parser.add_argument(number, type=int)
    options = parser.parse_args()
    with distributed.process_group("cpu"):
        measured = _measure(options.network, options.batch, options.steps, options.rounds)
        if distributed.is_first():
            print(json.dumps(measured))
