"""What one process of a training in several does in tests, and the same in one process alone."""

from __future__ import annotations

import os
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from digit_tasks import permuted
from nets import Residual, conv2d, learner, mlp, stack, task
from tinysubnets.baselines.ewc import EWC
from tinysubnets.baselines.gem import GEM
from tinysubnets.baselines.lwf import LwF
from tinysubnets.baselines.replay import Replay
from tinysubnets.commands.processes import environment_of, held_port
from tinysubnets.errors import RunError, SettingError
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.training import distributed, loop
from tinysubnets.training.loop import Training

# Every process of a training starts from this one, in which torch is imported already.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["parallel_cases", "torch._dynamo"])
METHODS: dict[str, Any] = {"ewc": EWC, "gem": GEM, "lwf": LwF, "replay": Replay}
BATCH = 17  # parts of 8 and 9 samples, or of 5, 6 and 6


class SometimesShort(nn.Module):
    """A network that leaves a layer out at random, and drops activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 20), nn.Linear(20, 20)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.first(x).relu())
        if not self.training or torch.rand(()) < 0.7:
            x = x + self.second(x).relu()
        return self.fc(x)


def begun(case: str) -> Any:
    """A task in training: TSN's first, or the second of another method."""
    training = {"batch_size": BATCH, "epochs": 2, "lr": 0.01}
    weights = (0.2, 1.0, 3.0) if case == "class weights" else None
    if case in METHODS:
        # What is learned before must be the same to the bit, in one process and in several.
        taught = METHODS[case](Architecture(mlp()), training=training)
        alone = METHODS[case](Architecture(mlp()), training=training)
        taught.restore_(*_first_task(alone))
        return taught.begin(task("b", seed=1))
    if case == "augmentation":
        training["augmentation"] = {"flip": True, "shift": 2}
        return learner(conv2d(), training=training).begin(task("a", shape=(1, 6, 6)))
    if case == "compiled":
        training["engine"] = "compiled"
    layer_loss = 0.3 if case == "layer loss" else 0.0
    return learner(training=training, layer_loss_weight=layer_loss).begin(
        task("a", class_weights=weights)
    )


def _first_task(learner: Any) -> Any:
    """The state after a task that was made up rather than trained."""
    trainer = learner.begin(task("a"))
    trainer.finish()
    return learner.state()


CASES = ("plain", "class weights", "layer loss", "compiled", *METHODS)
DRAWN = ("plain", "augmentation", "replay")  # cases whose epochs draw batches, changes and buffers


def one_step(case: str) -> dict[str, Tensor]:
    """The gradients of one batch, by the names of the parameters."""
    training = begun(case).training
    inputs, labels = next(training.train.epoch(training.order(), BATCH))
    training.backward_(inputs, labels)
    return {
        n: p.grad.clone() for n, p in training.unwrapped.named_parameters() if p.grad is not None
    }


PASSES: list[float] = []  # what passes in training have drawn; not held by the network itself


class Drawing(nn.Module):
    """A layer that draws a random number in every pass of training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            PASSES.append(float(torch.rand(())))
        return x


def draws() -> list[float]:
    """What the passes of two epochs draw."""
    trainer = learner(stack(nn.Linear(6, 10), Drawing(), head=10)).begin(task("a"))
    PASSES.clear()  # what the network was tried by
    trainer.epoch()
    trainer.epoch()
    return list(PASSES)


def kept_buffer(rank: int) -> list[float]:
    """A value of the bank, another one in every process, after a step."""
    training = begun("plain").training
    bank = next(b for b in training.unwrapped.buffers() if b.is_floating_point())
    bank.fill_(rank)
    training.backward_(*next(training.train.epoch(training.order(), BATCH)))
    return bank.unique().tolist()


def refusal(net: nn.Module, shape: tuple[int, ...], **training: Any) -> str:
    """Why a training cannot begin; empty where it can."""
    try:
        learner(net, training=training).begin(task("a", shape=shape))
    except SettingError as error:
        return str(error)
    return ""


def can_capture() -> bool:
    """Whether steps could be CUDA graphs if these processes had their data on a GPU."""
    data = SimpleNamespace(resident=True)
    settings = SimpleNamespace(engine="auto")
    on_gpu = SimpleNamespace(train=data, valid=data, device=torch.device("cuda"), settings=settings)
    return bool(Training.can_capture.__get__(on_gpu))


def two_epochs(case: str) -> list[float]:
    """The losses of two epochs: every draw of a batch or of a buffer counts."""
    trainer = begun(case)
    return [trainer.epoch().loss for _ in range(2)]


def learn_digits(net: nn.Module) -> TinySubNets:
    """Three tasks of digits, checked after each that no earlier answer has changed."""
    training = {"epochs": 3, "batch_size": 50, "lr": 0.01, "codebook_updates_per_epoch": 2}
    taught = TinySubNets(Architecture(net), training=training, pruning={"iterations": 6})
    tasks = permuted(3, 300)
    probe = tasks[0].valid.inputs()
    answers: dict[str, Tensor] = {}
    for each in tasks:
        taught.learn(each)
        for name, before in answers.items():
            assert torch.equal(taught.logits(name, probe), before)
        answers[each.name] = taught.logits(each.name, probe)
    return taught


def everything(rank: int, folder: Path) -> None:
    """All that several processes must agree on; what came out goes to a file."""
    torch.manual_seed(rank)  # what the user has drawn before is different everywhere
    loop.compiled_loss = lambda: torch.compile(loop.loss_of, backend="eager", dynamic=False)
    out: dict[str, Any] = {f"gradients of {case}": one_step(case) for case in CASES}
    out |= {f"losses of {case}": two_epochs(case) for case in DRAWN}
    out |= {"draws": [draws(), draws()], "bank": kept_buffer(rank)}
    size = distributed.num_processes()
    out["small batch"] = refusal(mlp(), (6,), batch_size=size - 1)
    out["fitting batch"] = refusal(mlp(), (6,), batch_size=size)
    out["small batch, normed"] = refusal(Residual(), (1, 6, 6), batch_size=2 * size - 1)
    out["fitting batch, normed"] = refusal(Residual(), (1, 6, 6), batch_size=2 * size)
    out["micro-batch"] = refusal(mlp(), (6,), micro_batch=4)
    out["slower on GPUs"] = distributed.slower_because(torch.device("cuda"))
    out["slower on CPUs"] = distributed.slower_because(torch.device("cpu"))
    out["can capture"] = can_capture()
    torch.manual_seed(0)
    taught = learn_digits(SometimesShort())
    taught.save(folder / f"model-{rank}")
    out["digests"] = [taught.store.digest(name) for name in taught.tasks]
    # Each process has statistics of its own parts in training, and all have the same when used.
    normed = learner(Residual())
    normed.learn(task(shape=(1, 6, 6)))
    out["digests"].append(normed.store.digest("a"))
    try:
        distributed.check_same("a number", rank)
    except RunError as error:
        out["refused"] = str(error)
    for teacher in (learner(Residual()), EWC(Architecture(Residual()), epochs=1)):
        try:
            # Statistics of BatchNorm are those of the data, which are others in every process.
            teacher.learn(task("other", shape=(1, 6, 6), seed=rank))
        except RunError as error:
            out[f"refused by {teacher.name}"] = str(error)
    torch.save(out, folder / f"{rank}.pt")


def go_on(rank: int, folder: Path) -> None:
    """Go on with a run to its end."""
    with RunDir(folder) as held:
        for _ in Experiment.resume(held).steps():
            pass


def mistaken(rank: int, folder: Path) -> None:
    """Fail in the way that all processes do."""
    distributed.from_first(lambda: learner(density=7.0))


def _work(work: Any, rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= environment_of(rank, size, port)
    with distributed.process_group("cpu"):
        work(rank, folder)


def in_processes(work: Any, size: int, folder: Path) -> list[int | None]:
    """Run a function of rank and folder in several processes that train together.

    Gives the exit status of each.
    """
    with held_port() as port:
        started = [
            CONTEXT.Process(target=_work, args=(work, rank, size, port, folder))
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(600)
    alive = [process for process in started if process.is_alive()]
    for process in alive:
        process.kill()
    assert not alive
    return [process.exitcode for process in started]
