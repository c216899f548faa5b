"""Many tasks over one pretrained network: ours beside what people do, on a near and a far stream.

    python -m benchmarks.pretrained prepare --data DATA --out arrays     # once, where the data are
    python -m benchmarks.pretrained run --arrays arrays --base my_networks:lite0 --out rows.jsonl
    python -m benchmarks.pretrained table rows.jsonl                     # Markdown
    python -m benchmarks.pretrained heads --arrays arrays --base my_networks:lite0

`near` is split CIFAR-100, `far` are digits, clothes and letters as color images; both are enlarged
to `--size` pixels. A method's learning rate is chosen among `--lrs` by validation accuracy, on the
first task of a stream and for the first seed, and kept for the others, or on every task where it is
told to (`--each-task`); test data are measured once. Bytes are those that a task adds, heads
included: of ours what the file grows by, of others 16-bit values, or what a line says. Ours learns
the tasks of a stream one after the other in one model, the others have one network per task. The
task of an input is known, so that ours keeps nothing to recognize it by. Seconds are those of the
processor on a CPU, and of the clock beside a GPU.

Every row is written as soon as it is there. A `run` that ended, or reached `--seconds`, goes on
where it was: seeds come one after the other, so that all that is left out is a seed. Rows in
`results/pretrained/*.jsonl` are published: `make results` makes tables of README and docs of them.

`heads` learns twenty heads in one model and tells its bytes, and how long one task takes to load.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from benchmarks.pretrained_table import read_rows, tables
from tinysubnets import Architecture, SubnetStore, TinySubNets, networks
from tinysubnets.coding.byte_io import Writer
from tinysubnets.coding.masks import entropy_bits
from tinysubnets.experiments.published import current_commit
from tinysubnets.format.sections import write_tensors
from tinysubnets.method.compress import store_task_params
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task

FAR = ("mnist", "fashion-mnist", "local/emnist_letters_a_to_j", "local/notmnist_small")
CHANNELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # where a network does not say
CODEC_BITS = 4


@dataclass(frozen=True)
class Row:
    """One task by one method: accuracies in %, the bytes it adds, and what training took.

    - `ours`: whether it is a method of this package; `note` then tells what each rung gave.
    - `base`, `device`: the network's name, and the machine that trained it.
    - `num_train`, `num_valid`, `num_test`: images of the task.
    """

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
    ours: bool = False
    # What it was measured with.
    base: str = ""
    device: str = ""
    pixels: int = 0
    epochs: int = 0
    num_classes: int = 0
    num_train: int = 0
    num_valid: int = 0
    num_test: int = 0
    commit: str | None = None


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
            wanted = sorted(set(labels.tolist()) if classes is None else classes)
            # Drawn from all: the first images of MNIST are by few hands, and validate too well.
            draw = np.random.default_rng(options.order)
            chosen = np.concatenate(
                [draw.permutation(np.flatnonzero(labels == c))[:most] for c in wanted]
            )
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


def tasks(options: argparse.Namespace, stream: str, seed: int) -> list[Task]:
    """The tasks of a stream, enlarged, with validation data drawn from the seed."""
    out = []
    for file in sorted(Path(options.arrays).glob(f"{stream}-*.npz"))[: options.max_tasks]:
        with np.load(file) as arrays:
            pairs = []
            for part, most in (("", options.train), ("test_", options.test)):
                labels = arrays[f"{part}labels"]
                where = np.concatenate(
                    [np.flatnonzero(labels == c)[:most] for c in np.unique(labels)]
                )
                images = enlarged(arrays[f"{part}inputs"][where], options.size)
                pairs.append((images, labels[where]))
        out.append(
            Task.from_arrays(
                file.stem,
                *pairs[0],
                valid=options.valid,
                test=pairs[1],
                seed=seed,
                normalization=options.normalization,
            )
        )
    if not out:
        raise SystemExit(f"no arrays of the stream {stream!r} in {options.arrays}: prepare them.")
    return out


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
    - `sizes`: by note, what the task would take, and how it then answers.
    - `gentle`: parameters that are moved at a tenth of the learning rate.
    """

    forward: Callable[[Tensor, bool], Tensor]
    parameters: list[nn.Parameter]
    sizes: Callable[[], dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]]
    gentle: list[nn.Parameter] = field(default_factory=list)


Rival = Callable[[nn.Module, str, int], Fit]


def head_of(net: nn.Module, name: str, classes: int) -> nn.Linear:
    """A fresh head of the task's classes, in its place."""
    old = net.get_submodule(name)
    assert isinstance(old, nn.Linear)
    head = nn.Linear(old.in_features, classes).to(old.weight.device)
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, head)
    return head


def set_mode(net: nn.Module, training: bool) -> None:
    """Training or evaluation; norms always use the statistics of pretraining."""
    net.train(training)
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

    # Their statistics stay, as those of all others do: EfficientNet's move by a hundredth a step,
    # so that after some hundred steps they are neither the base's nor the task's.
    def forward(inputs: Tensor, training: bool) -> Tensor:
        set_mode(net, training)
        return net(inputs)

    def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
        binary = copy.deepcopy(net)
        with torch.no_grad():
            for n, p in binary.named_parameters():
                if n in matrices:
                    delta = p - base[n]
                    p.copy_(base[n] + delta.sign() * delta.abs().mean())
        other = vectors_bytes(net, lambda n, _: n not in matrices)
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
        set_mode(net, training)
        masked = {n: p * _Threshold.apply(scores[n]) for n, p in weights.items()}
        return torch.func.functional_call(net, masked, (inputs,))

    def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
        bits = sum(entropy_bits(int((s > 5e-3).sum()), s.numel()) for s in scores.values())
        return {"": (bits / 8 + vectors_bytes(head, lambda *_: True), forward)}

    # A score crosses the threshold after a few steps of the rate that suits a head.
    return Fit(forward, list(head.parameters()), sizes, list(scores.values()))


class LowRank(nn.Module):
    """A frozen linear layer or pointwise convolution, and a difference of low rank beside it.

    The output is layer(x) + 2 B(A(x)), with A of `rank` outputs from a random start and B from 0,
    as peft begins them with an alpha of twice the rank.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer
        if isinstance(layer, nn.Linear):
            self.down: nn.Module = nn.Linear(layer.in_features, rank, bias=False)
            self.up: nn.Module = nn.Linear(rank, layer.out_features, bias=False)
        else:
            stride, padding = layer.stride, layer.padding
            self.down = nn.Conv2d(layer.in_channels, rank, 1, stride, padding, bias=False)
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)
        self.to(layer.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * self.up(self.down(x))


def adapted_layers(net: nn.Module, head: str) -> list[str]:
    """The layers that get a difference of low rank: linear ones and pointwise convolutions."""
    return [
        n
        for n, m in net.named_modules()
        if (isinstance(m, nn.Linear) and n != head)
        or (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1) and m.groups == 1)
    ]


def with_low_rank(net: nn.Module, head: str, rank: int) -> nn.Module:
    """The network with a `LowRank` in the place of each layer that gets one."""
    for name in adapted_layers(net, head):
        parent, _, leaf = name.rpartition(".")
        layer = net.get_submodule(name)
        assert isinstance(layer, (nn.Linear, nn.Conv2d))
        setattr(net.get_submodule(parent), leaf, LowRank(layer, rank))
    return net


def with_peft(net: nn.Module, head: str, rank: int) -> nn.Module:
    """The same by peft, which is an extra."""
    import peft

    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=adapted_layers(net, head), lora_dropout=0.0
    )
    return peft.get_peft_model(net, config)


def lora(rank: int, adapt: Callable[[nn.Module, str, int], nn.Module]) -> Rival:
    """Differences of low rank, and a head."""

    def make(net: nn.Module, name: str, classes: int) -> Fit:
        head = head_of(net, name, classes)
        kept = {id(p) for p in net.parameters()} - {id(p) for p in head.parameters()}
        adapted = adapt(net, name, rank)
        own = {n: p for n, p in adapted.named_parameters() if id(p) not in kept}
        for n, parameter in adapted.named_parameters():
            parameter.requires_grad_(n in own)

        def forward(inputs: Tensor, training: bool) -> Tensor:
            set_mode(adapted, training)
            return adapted(inputs)

        def sizes() -> dict[str, tuple[float, Callable[[Tensor, bool], Tensor]]]:
            coded = copy.deepcopy(adapted)
            tensors = {n: p for n, p in coded.named_parameters() if n in own}
            size = code_(tensors)

            def by_codec(inputs: Tensor, training: bool) -> Tensor:
                return coded.eval()(inputs)

            plain = 2.0 * sum(p.numel() for p in own.values())
            return {"": (plain, forward), "our codec": (size, by_codec)}

        return Fit(forward, list(own.values()), sizes)

    return make


@torch.no_grad()
def code_(tensors: Mapping[str, Tensor]) -> float:
    """Round tensors as our files hold heads, in `CODEC_BITS`; gives the bytes they take there."""
    coded = store_task_params(
        {n: t.detach().cpu() for n, t in tensors.items()}, CODEC_BITS, head=""
    )
    for name, tensor in tensors.items():
        tensor.copy_(coded[name].decode().view_as(tensor).to(tensor))
    writer = Writer()
    # What is one number everywhere takes no bytes.
    write_tensors(writer, {n: c for n, c in coded.items() if c.codes is None or c.bits}, None)
    return float(len(writer.bytes()))


RIVALS: dict[str, Rival] = {
    "full fine-tuning": full,
    "piggyback": piggyback,
    "lora-4": lora(4, with_low_rank),
    "lora-16": lora(16, with_low_rank),
    "lora-4-peft": lora(4, with_peft),
    "lora-16-peft": lora(16, with_peft),
}
USUAL = [name for name in RIVALS if not name.endswith("peft")]  # peft need not be there


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
    kind = torch.device(options.device).type
    net = copy.deepcopy(options.net).to(options.device)
    fit = RIVALS[method](net, options.architecture.head, task.num_classes)
    groups: list[dict[str, Any]] = [{"params": fit.parameters}]
    if fit.gentle:
        groups.append({"params": fit.gentle, "lr": lr / 10, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr, weight_decay=1e-4)
    steps = options.epochs * -(-len(task.train) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    inputs, labels = task.train.inputs(), task.train.labels.to(options.device)
    if kind == "cuda":
        inputs = inputs.to(options.device)
    begin = clock(options)
    for epoch in range(options.epochs):
        for where in batches(len(task.train), options.batch, seed * 1000 + epoch):
            raw = inputs[where.to(inputs.device)].to(options.device)
            with torch.autocast(kind, torch.bfloat16, enabled=options.precision == "bfloat16"):
                logits = fit.forward(options.normalize(raw), True)
            loss = functional.cross_entropy(logits.float(), labels[where.to(labels.device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    if kind == "cuda":
        torch.cuda.synchronize()
    seconds = clock(options) - begin
    for note, (size, forward) in fit.sizes().items():
        valid, test = (accuracy(forward, part, options) for part in (task.valid, task.test))
        yield row(task, method, seed, valid, test, size, seconds, lr, note, options)


def clock(options: Any) -> float:
    """Seconds: of the clock beside a GPU, else of the processor, which other work does not slow."""
    is_gpu = torch.device(options.device).type == "cuda"
    return time.perf_counter() if is_gpu else time.process_time()


def row(
    task: Task, method: str, seed: int, valid: float, test: float, size: float, seconds: float,
    lr: float, note: str, options: Any,
) -> Row:  # fmt: skip
    assert task.test is not None
    backbone = 4 * options.architecture.num_shared
    stream = task.name.partition("-")[0]
    return Row(
        stream, method, seed, task.name, valid, test, size, backbone, seconds, lr, note,
        ours=method in OURS,
        num_classes=task.num_classes,
        num_train=len(task.train),
        num_valid=len(task.valid),
        num_test=len(task.test),
        **told(options),
    )  # fmt: skip


def told(options: Any) -> dict[str, Any]:
    """What all rows of a run are measured with."""
    is_gpu = torch.device(options.device).type == "cuda"
    return {
        "base": options.base,
        "device": options.machine or (torch.cuda.get_device_name() if is_gpu else "a CPU"),
        "pixels": options.size,
        "epochs": options.epochs,
        "commit": current_commit(),
    }


# Ours.

OURS: dict[str, dict[str, Any]] = {
    "head alone": {"rungs": ("head",), "price": 1.0},
    "scales and shifts": {"rungs": ("norms",), "price": 1.0},
    "ours": {},
}


def learner_of(method: str, lr: float, seed: int, options: Any) -> TinySubNets:
    """A learner of ours over the base; heads and norms move ten times as far as whole networks."""
    settings = {"routing": {"parts": ()}} | OURS[method] | options.settings.get(method, {})
    training = {
        "epochs": options.epochs,
        "batch_size": options.batch,
        "lr": 10 * lr,
        "optimizer": "adamw",
        "weight_decay": 1e-4,
        "precision": options.precision,
        "micro_batch": options.micro_batch,
    }
    return TinySubNets(
        options.frozen, device=options.device, seed=seed, training=training, **settings
    )


def learn_ours(learner: TinySubNets, method: str, task: Task, lr: float, options: Any) -> Row:
    """One more task of a model."""
    before = learner.ledger().file_bytes or 0
    begin = clock(options)
    report = learner.learn(task, progress=False)
    seconds = clock(options) - begin
    size = (learner.ledger().file_bytes or 0) - before
    test = 100 * learner.evaluate(task).accuracy
    valid, reason, seed = 100 * report.valid_accuracy, report.reason, learner.settings.seed
    return row(task, method, seed, valid, test, size, seconds, lr, reason, options)


# Runs and tables.


class OutOfTimeError(Exception):
    """The seconds that a run may take are over."""


def run(options: argparse.Namespace) -> None:
    """All methods on all tasks; rows that are in the file already are not made again."""
    if strange := sorted(set(options.methods) - {*OURS, *RIVALS}):
        raise SystemExit(f"unknown methods {strange}; known: {', '.join([*OURS, *RIVALS])}.")
    set_up(options)
    options.done = read(Path(options.out)) if Path(options.out).exists() else []
    check_alike(options)
    options.begin, parts = time.perf_counter(), []
    try:
        for seed in options.seeds:
            for stream in options.streams:
                found = tasks(options, stream, seed)
                for method in options.methods:
                    begin = time.perf_counter()
                    (run_ours if method in OURS else run_rival)(method, found, seed, options)
                    parts.append((seed, stream, method, time.perf_counter() - begin))
    except OutOfTimeError:
        print(f"stopped after {options.seconds:g} s; the same command goes on from here.")
    for seed, stream, method, seconds in parts:
        print(f"seed {seed}, {stream}, {method}: {seconds:.1f} s")
    if options.done:
        table(argparse.Namespace(rows=options.out))


def set_up(options: argparse.Namespace) -> None:
    """Build the network, and find out what its inputs are."""
    options.net = networks.pretrained(options.base)
    options.architecture = Architecture(options.net, options.head)
    options.frozen = Architecture(options.net, options.architecture.head, base="frozen")
    expected = options.architecture.expected_inputs
    mean, std = CHANNELS if expected is None else (expected.mean, expected.std)
    options.normalization = Normalization(*(tuple(255 * v for v in p) for p in (mean, std)), 2)
    options.normalize = lambda raw: options.normalization(raw).contiguous(
        memory_format=torch.channels_last
    )
    options.settings = json.loads(options.settings)


def run_rival(method: str, found: list[Task], seed: int, options: Any) -> None:
    """A rival on all tasks of a stream that are not in the file yet."""
    for task in found:
        if done_with(method, task, seed, options):
            continue
        tried = [
            list(fit_rival(method, task, lr, seed, options))
            for lr in rates(method, task, options)
            if not check_time(options)
        ]
        write(max(tried, key=lambda rows: rows[0].valid), options)


def run_ours(method: str, found: list[Task], seed: int, options: Any) -> None:
    """A method of ours on a stream: all of its tasks in one model, which begins anew."""
    if all(done_with(method, task, seed, options) for task in found):
        return
    state = None
    for task in found:
        tried = []
        for lr in rates(method, task, options):
            check_time(options)
            learner = learner_of(method, lr, seed, options)
            if state is not None:
                learner.restore_(*state)
            tried.append((learn_ours(learner, method, task, lr, options), learner))
        best, learner = max(tried, key=lambda pair: pair[0].valid)
        state = learner.state()
        if not done_with(method, task, seed, options):
            write([best], options)


def rates(method: str, task: Task, options: Any) -> list[float]:
    """The learning rates to try: the one that was best on the stream's first task, or all."""
    stream = task.name.partition("-")[0]
    known = [r for r in options.done if r.stream == stream and r.method == method]
    return [known[0].lr] if known and not options.each_task else options.lrs


def done_with(method: str, task: Task, seed: int, options: Any) -> bool:
    """Whether the file has a row of this task."""
    return any((r.method, r.task, r.seed) == (method, task.name, seed) for r in options.done)


def check_time(options: Any) -> None:
    """Stop where the seconds of the run are over."""
    if options.seconds and time.perf_counter() - options.begin > options.seconds:
        raise OutOfTimeError


def write(rows: list[Row], options: Any) -> None:
    """Add rows to the file."""
    options.done += rows
    with Path(options.out).open("a") as file:
        file.writelines(json.dumps(asdict(found)) + "\n" for found in rows)
    for found in rows:
        note = f" ({found.note})" if found.note else ""
        print(
            f"seed {found.seed} {found.task} {found.method}{note}: valid {found.valid:.2f}, test "
            f"{found.test:.2f}, {found.size_bytes / 1000:.1f} kB, {found.seconds:.1f} s, lr "
            f"{found.lr:g}",
            flush=True,
        )


def heads(options: argparse.Namespace) -> None:
    """Twenty tasks of a head each: what the file takes, and how long one of them takes to load."""
    import tempfile

    set_up(options)
    learner = learner_of("head alone", options.lrs[0], 0, options)
    found = tasks(options, options.streams[0], 0)
    for number in range(20):
        learner.learn(replace(found[number % len(found)], name=f"{number}"), progress=False)
    with tempfile.TemporaryDirectory() as folder:
        size = learner.save(folder).stat().st_size
        seconds = []
        for _ in range(5):
            net = networks.pretrained(options.base)
            begin = time.perf_counter()
            SubnetStore.load(folder, net, task="7").tensors("7")
            seconds.append(time.perf_counter() - begin)
    print(f"20 heads: {size:,} bytes; one task beside building the network: {min(seconds):.3f} to "
          f"{max(seconds):.3f} s")  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows in a file."""
    return [Row(**row) for row in read_rows(path)]


def check_alike(options: Any) -> None:
    """Refuse to add to rows that were measured with something else."""
    now = {k: v for k, v in told(options).items() if k != "commit"}
    for found in options.done:
        before = {k: getattr(found, k) for k in now}
        if before != now:
            raise SystemExit(f"{options.out} has rows of {before}, this run is {now}: other --out.")


def table(options: argparse.Namespace) -> None:
    """Print a Markdown table for each stream: mean over tasks, mean and deviation over seeds."""
    print(f"\n{tables(read_rows(Path(options.rows)))}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What runs are given."""
    parser.add_argument("--arrays", required=True, help="what prepare wrote")
    parser.add_argument("--base", required=True, help="timm:NAME or MODULE:FUNCTION")
    parser.add_argument("--head", help="its last layer, where that has no usual name")
    parser.add_argument("--size", type=int, default=96, help="side of the images in pixels")
    parser.add_argument("--streams", nargs="+", default=["near", "far"])
    parser.add_argument("--methods", nargs="+", default=[*OURS, *USUAL])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--each-task", action="store_true", help="choose the rate on every task")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, help="samples at once, of ours")
    parser.add_argument("--precision", default="float32", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--max-tasks", type=int, default=10, help="of a stream")
    parser.add_argument("--train", type=int, default=500, help="at most so many images of a class")
    parser.add_argument("--valid", type=float, default=0.15, help="share of them to validate with")
    parser.add_argument("--test", type=int, default=100, help="at most so many images of a class")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--machine", help="what it runs on in words, for the tables")
    parser.add_argument("--settings", default="{}", help="JSON: by method of ours, its settings")


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
    fourth = commands.add_parser("heads", help="the bytes and the loading of twenty heads")
    for parser_of in (second, fourth):
        add_options(parser_of)
    second.add_argument("--out", required=True, help="rows are added to this file")
    second.set_defaults(work=run)
    fourth.set_defaults(work=heads)
    third = commands.add_parser("table", help="print the tables")
    third.add_argument("rows")
    third.set_defaults(work=table)
    options = parser.parse_args(arguments)
    options.work(options)


if __name__ == "__main__":
    main()
