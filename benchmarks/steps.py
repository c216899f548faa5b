"""The masked and quantized training step against a plain dense one of the same network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tinysubnets import networks
from tinysubnets.method.core import SubnetTrainer
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

SHAPES = {
    "mlp": (1, 28, 28),
    "alexnet": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "small-resnet": (3, 32, 32),
}
# A task whose own values are the largest ones, as signs; what is measured is the second half of
# its training, in which values are rounded.
SIGNS = {"selection": "magnitude", "bits": 1, "density": 0.02}


def synthetic_task(network: str, samples: int, seed: int = 0) -> Task:
    """Random pixels and labels in the shape the network takes."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, *SHAPES[network])
    inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    return Task.from_arrays(f"random-{seed}", inputs, labels, seed=seed)


def median_ms(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median time of a call in milliseconds, after a warm-up."""
    for _ in range(3):
        call()
    return statistics.median(time_ms(call, device) for _ in range(repeats))


def time_ms(call: Callable[[], Any], device: torch.device) -> float:
    """The time of one call in milliseconds, until the device has done it."""
    _wait(device)
    begin = time.perf_counter()
    call()
    _wait(device)
    return 1e3 * (time.perf_counter() - begin)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def trainer_of(
    network: str, batch: int, steps: int, device: torch.device, **settings: Any
) -> SubnetTrainer:
    """A task in training, with so many steps per epoch, on random data."""
    training = {"batch_size": batch, "epochs": 50, "lr": 1e-3, "precision": "tf32"}
    training |= settings.pop("training", {})
    net = networks.build(network)
    task = synthetic_task(network, round(batch * steps / 0.9))
    settings = {"density": 0.1, "bits": 4, "max_banks": 1, "memory": None} | settings
    learner = TinySubNets(Architecture(net), device=device, training=training, **settings)
    return learner.begin(task)


def masked_epoch(trainer: SubnetTrainer) -> Callable[[], Any]:
    """An epoch of training, codebook updates included, without validation.

    On a GPU picking the batch is part of the captured step and counts; on a CPU the batches are at
    hand, as for the dense opponent.
    """
    training = trainer.training
    if training.device.type == "cuda":
        result = training.validate()
        training.validate = lambda: result  # type: ignore[method-assign]
        return trainer.epoch
    _, codebook_steps = training.epoch_schedule()
    batches = list(training.train.epoch(training.order(), training.settings.batch_size))

    def epoch() -> None:
        for step, (inputs, labels) in enumerate(batches):
            if step in codebook_steps:
                training.update_codebooks_()
            training.step(inputs, labels)

    return epoch


class DenseStep:
    """A plain dense training step: the network, fused Adam, compiled and captured where asked.

    On purpose by torch alone, without a line of ours: it is what we are compared with.
    """

    def __init__(self, network: str, batch: int, device: torch.device, compiled: bool) -> None:
        # Channels last, as ours computes: a plain step is up to 1.5 times as slow without.
        self.net = networks.build(network).to(device, memory_format=torch.channels_last)
        self.inputs = torch.randn((batch, *SHAPES[network]), device=device)
        self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (batch,), device=device)
        self.run: nn.Module = torch.compile(self.net) if compiled else self.net  # type: ignore[assignment]
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3, fused=True, capturable=cuda)
        self.call: Callable[[], Any] = self.capture() if cuda else self.step

    def step(self) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self.run(self.inputs), self.labels).backward()
        self.optimizer.step()

    def capture(self) -> Callable[[], Any]:
        """The step as a CUDA graph: the strongest plain opponent."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def compare(
    network: str, batch: int, steps: int, device: torch.device, compiled: bool, rounds: int = 5
) -> dict[str, Any]:
    """One row: the dense step, compiled or not, our masked step, and their ratio.

    Against a compiled step ours is compiled too on a GPU, and as it comes on a CPU. A small-resnet
    learns signs, as the recipe for it does.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True  # both sides: TF32 on a GPU
    dense = DenseStep(network, batch, device, compiled)

    def dense_epoch() -> None:
        for _ in range(steps):
            dense.call()

    dense_epoch()
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    engine = "compiled" if compiled and device.type == "cuda" else "auto"
    kind = SIGNS if network == "small-resnet" else {}
    trainer = trainer_of(network, batch, steps, device, training={"engine": engine}, **kind)
    trainer.training.progress.epoch = trainer.training.settings.epochs // 2
    ours = masked_epoch(trainer)
    ours()
    # In turns: a machine may be now fast, now slow.
    pairs = [(time_ms(dense_epoch, device), time_ms(ours, device)) for _ in range(rounds)]
    dense_ms, masked_ms = (statistics.median(t) / steps for t in zip(*pairs, strict=True))
    target = {
        ("alexnet", "cuda"): "<= 1.5",
        ("resnet18", "cuda"): "<= 1.15",
        ("alexnet", "cpu"): "<= 1.3",
        ("mlp", "cpu"): "<= 2",
    }
    opponent = "compiled" if compiled else "plain"
    return {
        "what": f"masked over {opponent} dense step, {network}, batch {batch}",
        "ratio": statistics.median(masked / plain for plain, masked in pairs),
        "target": target.get((network, device.type), "") if compiled else "",
        "dense_ms": dense_ms,
        "masked_ms": masked_ms,
    }


def mnist_epoch(device: torch.device) -> dict[str, Any]:
    """A whole permuted-MNIST epoch, validation included: 211 steps of 256."""
    trainer = trainer_of("mlp", 256, 211, device)
    trainer.epoch()
    seconds = min(trainer.epoch().seconds for _ in range(5))
    target = "<= 0.04 s on an H200" if device.type == "cuda" else ""
    return {"what": "permuted-MNIST epoch, 211 steps of 256", "target": target, "epoch_s": seconds}


def codebook_update(device: torch.device) -> dict[str, Any]:
    """A codebook update of AlexNet's 6.5 million weights over one training step.

    Warm: from the last centroids, on a GPU by the captured graph, as in training. Cold: from
    nothing.
    """
    trainer = trainer_of("alexnet", 128, 4 if device.type == "cpu" else 35, device)
    module = trainer.module
    trainer.epoch()
    repeats = 3 if device.type == "cpu" else 20
    step_ms = median_ms(masked_epoch(trainer), device, 3) / trainer.training.num_steps
    warm_ms = median_ms(trainer.training.update_codebooks_, device, repeats)

    def cold() -> None:
        module.codebooks_fitted = False
        module.update_codebooks_()

    cold_ms = median_ms(cold, device, repeats)
    return {
        "what": "codebook update over one step, alexnet",
        "ratio": warm_ms / step_ms,
        "target": "warm <= 0.2, cold <= 1",
        "cold_ratio": cold_ms / step_ms,
        "warm_ms": warm_ms,
        "cold_ms": cold_ms,
        "step_ms": step_ms,
    }


def peak_memory(device: torch.device) -> dict[str, Any]:
    """Memory at the peak of training beyond activations, over that of dense training with Adam.

    Each in a process of its own: workspaces of libraries that are there already would not count.
    """
    sizes = {}
    for name in ("dense", "masked"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            sizes[name] = pool.submit(_peak, name, str(device)).result()
    return {
        "what": "peak memory, alexnet at batch 2, over dense Adam",
        "target": "<= 3",
        "ratio": sizes["masked"] / sizes["dense"],
        "dense_MiB": sizes["dense"] / 2**20,
        "masked_MiB": sizes["masked"] / 2**20,
    }


def _peak(name: str, device: str) -> int:
    """The most bytes that torch held on the device while a few steps were trained."""
    if name == "dense":
        DenseStep("alexnet", 2, torch.device(device), compiled=False).call()
    else:
        trainer_of("alexnet", 2, 2, torch.device(device), training={"engine": "graph"}).epoch()
    return torch.cuda.max_memory_allocated()
