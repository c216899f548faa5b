"""Many tasks over one pretrained network: ours beside what people do, on a near and a far stream.

    python -m benchmarks.pretrained prepare --data DATA --out arrays     # once, where the data are
    python -m benchmarks.pretrained run --arrays arrays --base my_networks:lite0 --out rows.jsonl
    python -m benchmarks.pretrained table rows.jsonl                     # Markdown

`near` is split CIFAR-100, `far` are digits, clothes and letters as color images; both are enlarged
to `--size` pixels. A method's learning rate is chosen on validation data among `--lrs`, task by
task, for all methods alike; test data are measured once. Bytes are those that a task adds, heads
included: of ours those of the file, of others 16-bit values, or what a line says.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from tinysubnets import Architecture, TinySubNets, networks
from tinysubnets.coding.masks import entropy_bits
from tinysubnets.model.subnet import code
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task

FAR = ("mnist", "fashion-mnist", "local/emnist_letters_a_to_j", "local/notmnist_small")
CHANNELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # where a network does not say
CODEC_BITS = 4


@dataclass(frozen=True)
class Row:
    """One task by one method: accuracies in %, the bytes it adds, and what training took."""

    stream: str
    method: str
    seed: int
    task: str
    valid: float
    test: float
    size_bytes: float
    backbone_bytes: int
    seconds: float
    lr: float
    note: str = ""


# Data.


def prepare(options: argparse.Namespace) -> None:
    """Write the tasks of both streams as arrays of 32x32 color images."""
    from tinysubnets.datasets.loaders import load

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    def save(name: str, train: Any, test: Any, classes: Iterable[int] | None) -> None:
        arrays = {}
        for part, found, most in (("", train, options.train), ("test_", test, options.test)):
            labels = np.asarray(found.labels)
            wanted = sorted(set(labels.tolist())) if classes is None else list(classes)
            chosen = np.concatenate([np.flatnonzero(labels == c)[:most] for c in wanted])
            images = np.asarray(found.inputs[chosen])
            arrays[f"{part}inputs"] = np.repeat(images, 3 // images.shape[1], 1)
            arrays[f"{part}labels"] = np.searchsorted(wanted, labels[chosen])
        np.savez_compressed(out / f"{name}.npz", **arrays)

    parts = [load("cifar100", split, options.data) for split in ("train", "test")]
    order = np.random.default_rng(options.order).permutation(100)
    for number in range(options.tasks):
        save(f"near-{number}", *parts, order[10 * number : 10 * number + 10])
    for number, name in enumerate(FAR):
        parts = [load(name, split, options.data, size=32) for split in ("train", "test")]
        save(f"far-{number}-{Path(name).name}", *parts, None)


def tasks(options: argparse.Namespace, stream: str, seed: int) -> Iterator[Task]:
    """The tasks of a stream, enlarged, with validation data drawn from the seed."""
    for file in sorted(Path(options.arrays).glob(f"{stream}-*.npz"))[: options.max_tasks]:
        with np.load(file) as arrays:
            pairs = [
                (enlarged(arrays[f"{part}inputs"], options.size), arrays[f"{part}labels"])
                for part in ("", "test_")
            ]
        norm = options.normalization
        yield Task.from_arrays(
            file.stem, *pairs[0], valid=0.15, test=pairs[1], seed=seed, normalization=norm
        )


def enlarged(images: np.ndarray, size: int) -> np.ndarray:
    """uint8 images [samples, 3, 32, 32] in another size."""
    parts = [
        functional.interpolate(torch.from_numpy(p).float(), size=size, mode="bilinear").round()
        for p in np.array_split(images, max(1, len(images) // 256))
    ]
    return torch.cat([p.to(torch.uint8) for p in parts]).numpy()


# Rivals, in plain torch.


@dataclass
class Fit:
    """What a rival trains: a function from inputs to logits, its parameters, and what they weigh.

    - `forward`: called with normalized inputs and whether this is training.
    - `size_bytes`: by note, what the task would take, and how it then answers.
    """

    forward: Callable[[Tensor, bool], Tensor]
    parameters: list[nn.Parameter]
    sizes: Callable[[], dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]]


def head_of(net: nn.Module, name: str, classes: int) -> nn.Linear:
    """A fresh head of the task's classes, in its place."""
    old = net.get_submodule(name)
    assert isinstance(old, nn.Linear)
    head = nn.Linear(old.in_features, classes).to(old.weight.device)
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, head)
    return head


def set_mode(net: nn.Module, training: bool, own_norms: bool) -> None:
    """Training or evaluation; norms that are not the task's own always evaluate."""
    net.train(training)
    if not own_norms:
        for module in net.modules():
            if isinstance(module, _NormBase):
                module.eval()


def vectors_bytes(net: nn.Module, own: Callable[[str, nn.Parameter], bool]) -> float:
    """16 bits for each value of the parameters that a task has for itself."""
    return sum(2.0 * p.numel() for n, p in net.named_parameters() if own(n, p))


def full(net: nn.Module, name: str, classes: int) -> Fit:
    """Full fine-tuning, and the same with its difference in one bit and a scale per tensor."""
    base = {n: p.detach().clone() for n, p in net.named_parameters()}
    head_of(net, name, classes)
    matrices = {n for n, p in net.named_parameters() if p.ndim > 1 and not n.startswith(name)}

    def forward(inputs: Tensor, training: bool) -> Tensor:
        set_mode(net, training, own_norms=True)
        return net(inputs)

    def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
        binary = copy.deepcopy(net)
        with torch.no_grad():
            for n, p in binary.named_parameters():
                if n in matrices:
                    delta = p - base[n]
                    p.copy_(base[n] + delta.sign() * delta.abs().mean())
        stats = 2.0 * sum(b.numel() for b in net.buffers())
        other = vectors_bytes(net, lambda n, _: n not in matrices) + stats
        count = sum(base[n].numel() for n in matrices)

        def one_bit(inputs: Tensor, training: bool) -> Tensor:
            return binary.eval()(inputs)

        return {
            "": (other + 2.0 * count, forward),
            "one-bit difference": (other + count / 8 + 4 * len(matrices), one_bit),
        }

    return Fit(forward, list(net.parameters()), sizes)


class _Threshold(torch.autograd.Function):
    """1 where a score is above 0.005, with the gradient straight through."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return (scores > 5e-3).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def piggyback(net: nn.Module, name: str, classes: int) -> Fit:
    """A binary mask over frozen weights, and a head."""
    head = head_of(net, name, classes)
    own = {id(p) for p in head.parameters()}
    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1 and id(p) not in own}
    for parameter in net.parameters():
        parameter.requires_grad_(id(parameter) in own)
    scores = {n: nn.Parameter(torch.full_like(p, 1e-2)) for n, p in weights.items()}

    def forward(inputs: Tensor, training: bool) -> Tensor:
        set_mode(net, training, own_norms=False)
        masked = {n: p * _Threshold.apply(scores[n]) for n, p in weights.items()}
        return torch.func.functional_call(net, masked, (inputs,))

    def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
        bits = sum(entropy_bits(int((s > 5e-3).sum()), s.numel()) for s in scores.values())
        return {"": (bits / 8 + vectors_bytes(head, lambda *_: True), forward)}

    return Fit(forward, [*scores.values(), *head.parameters()], sizes)


def lora(rank: int) -> Callable[[nn.Module, str, int], Fit]:
    """Low-rank differences by peft, of pointwise convolutions and linear layers."""

    def make(net: nn.Module, name: str, classes: int) -> Fit:
        import peft

        head = head_of(net, name, classes)
        targets = [
            n
            for n, m in net.named_modules()
            if (isinstance(m, nn.Linear) and n != name)
            or (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) and m.groups == 1)
        ]
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
        adapted = peft.get_peft_model(net, config)
        for parameter in head.parameters():
            parameter.requires_grad_(True)
        low = [p for n, p in adapted.named_parameters() if "lora_" in n]

        def forward(inputs: Tensor, training: bool) -> Tensor:
            set_mode(adapted, training, own_norms=False)
            return adapted(inputs)

        def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
            coded = copy.deepcopy(adapted)
            size = 0.0
            with torch.no_grad():
                for n, p in coded.named_parameters():
                    if "lora_" in n or p.requires_grad:
                        found = code(p.flatten(), CODEC_BITS)
                        p.copy_(found.decode().view_as(p).to(p))
                        size += found.size_bits / 8

            def by_codec(inputs: Tensor, training: bool) -> Tensor:
                return coded.eval()(inputs)

            plain = 2.0 * sum(p.numel() for p in [*low, *head.parameters()])
            return {"": (plain, forward), "our codec": (size, by_codec)}

        return Fit(forward, [*low, *head.parameters()], sizes)

    return make


RIVALS: dict[str, Callable[[nn.Module, str, int], Fit]] = {
    "full fine-tuning": full,
    "piggyback": piggyback,
    "lora-4": lora(4),
    "lora-16": lora(16),
}


def batches(count: int, size: int, seed: int) -> Iterator[Tensor]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    yield from order.split(size)


@torch.no_grad()
def accuracy(forward: Callable[[Tensor, bool], Tensor], split: Any, options: Any) -> float:
    """The share of right answers in %."""
    right = 0
    for where in torch.arange(len(split)).split(256):
        raw = split.inputs(where).to(options.device)
        right += int(
            (forward(options.normalize(raw), False).argmax(1).cpu() == split.labels[where]).sum()
        )
    return 100 * right / len(split)


def fit_rival(method: str, task: Task, lr: float, seed: int, options: Any) -> Iterator[Row]:
    """Train a rival on a task; a row for each way to store it."""
    torch.manual_seed(seed)
    net = copy.deepcopy(options.net).to(options.device)
    fit = RIVALS[method](net, options.architecture.head, task.num_classes)
    fit_parameters = [p for p in fit.parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(fit_parameters, lr, weight_decay=1e-4)
    steps = options.epochs * -(-len(task.train) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    begin = time.perf_counter()
    for epoch in range(options.epochs):
        for where in batches(len(task.train), options.batch, seed * 1000 + epoch):
            raw = task.train.inputs(where).to(options.device)
            logits = fit.forward(options.normalize(raw), True)
            loss = functional.cross_entropy(logits, task.train.labels[where].to(options.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - begin
    for note, (size, forward) in fit.sizes().items():
        valid, test = (accuracy(forward, part, options) for part in (task.valid, task.test))
        yield row(task, method, seed, valid, test, size, seconds, lr, note, options)


def row(
    task: Task, method: str, seed: int, valid: float, test: float, size: float, seconds: float,
    lr: float, note: str, options: Any,
) -> Row:  # fmt: skip
    backbone = 4 * options.architecture.num_shared
    stream = task.name.partition("-")[0]
    return Row(stream, method, seed, task.name, valid, test, size, backbone, seconds, lr, note)


# Ours.

OURS: dict[str, dict[str, Any]] = {
    "head alone": {"rungs": ("head",), "price": 1.0},
    "scales and shifts": {"rungs": ("norms",), "price": 1.0},
    "ours": {},
}


def learn_ours(method: str, task: Task, lr: float, seed: int, options: Any) -> Iterator[Row]:
    """A task by a method of ours, over the same base."""
    architecture = Architecture(options.net, options.architecture.head, base="frozen")
    settings = OURS[method] | options.settings.get(method, {})
    training = {"epochs": options.epochs, "batch_size": options.batch, "lr": 10 * lr}
    learner = TinySubNets(
        architecture, device=options.device, seed=seed, training=training, **settings
    )
    before = learner.ledger().file_bytes or 0
    begin = time.perf_counter()
    report = learner.learn(task, progress=False)
    seconds = time.perf_counter() - begin
    size = (learner.ledger().file_bytes or 0) - before
    test = 100 * learner.evaluate(task).accuracy
    valid = 100 * report.valid_accuracy
    yield row(task, method, seed, valid, test, size, seconds, lr, report.reason, options)


# Runs and tables.


def run(options: argparse.Namespace) -> None:
    """All methods on all tasks; rows that are in the file already are not made again."""
    out = Path(options.out)
    done = {(r.stream, r.method, r.seed, r.task) for r in read(out)} if out.exists() else set()
    options.net = networks.pretrained(options.base)
    options.architecture = Architecture(options.net, options.head)
    expected = options.architecture.expected_inputs
    mean, std = CHANNELS if expected is None else (expected.mean, expected.std)
    options.normalization = Normalization(*(tuple(255 * v for v in p) for p in (mean, std)), 2)
    options.normalize = options.normalization
    options.settings = json.loads(options.settings)
    for seed in options.seeds:
        for stream in options.streams:
            for task in tasks(options, stream, seed):
                for method in options.methods:
                    if (stream, method, seed, task.name) not in done:
                        for found in best_rate(method, task, seed, options):
                            with out.open("a") as file:
                                file.write(json.dumps(asdict(found)) + "\n")
                            print(found, flush=True)


def best_rate(method: str, task: Task, seed: int, options: Any) -> list[Row]:
    """The rows of the learning rate that is best on validation data."""
    work = learn_ours if method in OURS else fit_rival
    tried = [list(work(method, task, lr, seed, options)) for lr in options.lrs]
    return max(tried, key=lambda rows: rows[0].valid)


def read(path: Path) -> list[Row]:
    """The rows in a file."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def table(options: argparse.Namespace) -> None:
    """A Markdown table for each stream: mean over tasks, mean and deviation over seeds."""
    rows = read(Path(options.rows))
    for stream in sorted({r.stream for r in rows}):
        print(f"\n| {stream} | test % | valid % | kB a task | % of the backbone | seconds | n |")
        print("|---|---|---|---|---|---|---|")
        groups: dict[str, list[Row]] = defaultdict(list)
        for r in rows:
            if r.stream == stream:
                rival = r.method not in OURS
                groups[f"{r.method}, {r.note}" if rival and r.note else r.method].append(r)
        for name, found in groups.items():
            seeds = sorted({r.seed for r in found})
            means = [np.mean([r.test for r in found if r.seed == s]) for s in seeds]
            spread = f" ± {np.std(means, ddof=1):.2f}" if len(seeds) > 1 else ""
            size = np.mean([r.size_bytes for r in found])
            share = 100 * size / found[0].backbone_bytes
            valid, seconds = (np.mean([getattr(r, k) for r in found]) for k in ("valid", "seconds"))
            print(
                f"| {name} | {np.mean(means):.2f}{spread} | {valid:.2f} | {size / 1000:.1f} | "
                f"{share:.2f} | {seconds:.1f} | {len(found)} |"
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare", help="write the tasks as arrays")
    first.add_argument("--data", required=True, help="local folder of data sets")
    first.add_argument("--out", required=True)
    first.add_argument("--tasks", type=int, default=10, help="of the near stream")
    first.add_argument("--train", type=int, default=450, help="images of a class")
    first.add_argument("--test", type=int, default=100, help="images of a class")
    first.add_argument("--order", type=int, default=100, help="seed of the order of classes")
    first.set_defaults(work=prepare)
    second = commands.add_parser("run", help="all methods on all tasks")
    second.add_argument("--arrays", required=True, help="what prepare wrote")
    second.add_argument("--base", required=True, help="timm:NAME or MODULE:FUNCTION")
    second.add_argument("--head", help="its last layer, where that has no usual name")
    second.add_argument("--out", required=True, help="rows are added to this file")
    second.add_argument("--size", type=int, default=96)
    second.add_argument("--streams", nargs="+", default=["near", "far"])
    second.add_argument("--methods", nargs="+", default=[*OURS, *RIVALS])
    second.add_argument("--seeds", type=int, nargs="+", default=[0])
    second.add_argument("--lrs", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    second.add_argument("--epochs", type=int, default=10)
    second.add_argument("--batch", type=int, default=64)
    second.add_argument("--max-tasks", type=int, default=10)
    second.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    second.add_argument("--settings", default="{}", help="JSON: by method of ours, its settings")
    second.set_defaults(work=run)
    third = commands.add_parser("table", help="print the tables")
    third.add_argument("rows")
    third.set_defaults(work=table)
    options = parser.parse_args(arguments)
    options.work(options)


if __name__ == "__main__":
    main()
