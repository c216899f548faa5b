"""Random networks that learn two tasks: refused before training by an error of ours, or remembered.

Networks are drawn from all kinds of layers, ordinary and odd ones: in-place activations, branches
that training skips, norms, embeddings, attention, recurrence, parametrizations, tied weights, state
that a pass keeps, several outputs. Optimizer, bit-width, sharing, blocks and losses are drawn too.

    python tests/random_architectures.py --cases 2000        # counts, and every failure
    python tests/random_architectures.py --case 123          # one of them, with its traceback
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from nets import VOCABULARY, data, task
from tinysubnets.errors import ArchitectureError, CapacityError, CapacityWarning, TaskError
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.trial import OVERWRITTEN

ODD = 0.12  # the share of networks with something that should be refused, or nearly so


@dataclass
class Case:
    """One drawn case: a network, the shape of its samples, and the learner's settings."""

    net: nn.Module
    shape: tuple[int, ...] | str
    settings: dict[str, Any]
    layers: list[str]
    odd: str | None  # what is odd about the network


class Draw:
    """Seeded choices."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)

    def one(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def size(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)


# Layers that keep the width of vectors [batch, width] ---------------------------------------------


class Skip(nn.Module):
    """A residual branch that training leaves out now and then."""

    def __init__(self, body: nn.Module, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.body, self.draw = body, draw

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.draw() < 0.5:
            return x
        return x + self.body(x)


class Branches(nn.Module):
    """Several ways, of which one is never used, and one adds what it is told to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.ways[0](x).mul_(0.5) + torch.relu_(self.ways[1](x))


class Gate(nn.Module):
    """A matrix of its own, used in place and as a product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.matrix).sigmoid_() * x * self.gain


class Tuple(nn.Module):
    """A layer inside that gives several tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x[:, None])
        return output[:, 0]


class Pair(nn.Module):
    """A layer with shared weights that gives a dict."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": x @ self.weight, "in": x}


class Unpack(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = Pair(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.pair(x)["out"]


class Tied(nn.Module):
    """Two layers with one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Functions(nn.Module):
    """Activations in a plain list hold nothing that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [nn.GELU(), torch.tanh]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class Attend(nn.Module):
    """Attention between the parts of a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack([x, x.flip(1)], 1)
        return self.attention(rows, rows, rows, need_weights=False)[0].sum(1)


def activation(draw: Draw) -> nn.Module:
    return draw.one(
        lambda: nn.ReLU(), lambda: nn.ReLU(inplace=True), lambda: nn.LeakyReLU(0.1, inplace=True),
        lambda: nn.Hardswish(inplace=True), lambda: nn.ELU(inplace=True), lambda: nn.PReLU(),
        lambda: nn.SiLU(), lambda: nn.Tanh(), lambda: nn.RReLU(), lambda: Functions(),
        lambda: nn.Dropout(0.2), lambda: nn.Dropout(0.2, inplace=True), lambda: nn.AlphaDropout(),
        lambda: nn.Softplus(), lambda: nn.Identity(),
    )()  # fmt: skip


def generator(draw: Draw) -> Callable[[], Any]:
    return draw.one(torch_draw, numpy_draw, python_draw)


def torch_draw() -> Tensor:
    return torch.rand(())


def numpy_draw() -> float:
    return np.random.rand()


def python_draw() -> float:
    return random.random()


def vector_layer(draw: Draw, width: int) -> tuple[str, nn.Module]:
    """A layer [batch, width] to the same."""
    even = width - width % 2 or 2
    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(width, width, bias=draw.chance(0.7)),
        "activation": lambda: activation(draw),
        "batchnorm": lambda: nn.BatchNorm1d(
            width, affine=draw.chance(0.7), momentum=draw.one(0.1, None)
        ),
        "batchnorm without statistics": lambda: nn.BatchNorm1d(width, track_running_stats=False),
        "syncbatchnorm": lambda: nn.SyncBatchNorm(width),
        "layernorm": lambda: nn.LayerNorm(width),
        "groupnorm": lambda: nn.GroupNorm(1, width),
        "rmsnorm": lambda: nn.RMSNorm(width),
        "weight norm": lambda: parametrizations.weight_norm(nn.Linear(width, width)),
        "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(width, width)),
        "stochastic depth": lambda: Skip(nn.Linear(width, width), generator(draw)),
        "branches": lambda: Branches(width),
        "gate": lambda: Gate(width),
        "tuple": lambda: Tuple(width),
        "dict": lambda: Unpack(width),
        "tied": lambda: Tied(width),
        "attention": lambda: Attend(width),
        "bilinear": lambda: Skip(nn.Sequential(nn.Linear(width, even), nn.Linear(even, width)),
                                 generator(draw)),
    }  # fmt: skip
    name = draw.one(*makers)
    return name, makers[name]()


# First layers, from samples to vectors ------------------------------------------------------------


class Last(nn.Module):
    """A recurrent layer read at its last step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


class Mean(nn.Module):
    """Looked-up vectors, averaged."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embed(tokens)
        return found.mean(1) if found.ndim == 3 else found


class Transformer(nn.Module):
    def __init__(self, width: int, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 1, 2 * width, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        return self.encoder(x)[:, 0]


def conv_norm(draw: Draw, channels: int) -> nn.Module:
    return draw.one(
        lambda: nn.BatchNorm2d(channels), lambda: nn.SyncBatchNorm(channels),
        lambda: nn.GroupNorm(2, channels), lambda: nn.Identity(),
        lambda: nn.InstanceNorm2d(channels, affine=True, track_running_stats=draw.chance(0.5)),
        lambda: nn.LocalResponseNorm(2),
    )()  # fmt: skip


def first_layer(draw: Draw, width: int) -> tuple[str, list[nn.Module], tuple[int, ...] | str]:
    kind = draw.one(
        "vectors", "vectors", "images", "images", "sequence", "recurrent", "tokens", "tokens"
    )
    if kind == "vectors":
        return kind, [nn.Linear(6, width)], (6,)
    if kind == "images":
        groups, kernel = draw.one(1, 2), draw.size(1, 3)
        conv: nn.Module = nn.Conv2d(2, 4, kernel, groups=groups, bias=draw.chance(0.5))
        if draw.chance(0.2):
            conv = parametrizations.weight_norm(conv)
        layers = [conv, conv_norm(draw, 4), activation(draw)]
        pool = draw.one(nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2))
        return kind, [*layers, pool, nn.Flatten(), nn.Linear(16, width)], (2, 5, 5)
    if kind == "sequence":
        conv = draw.one(nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(2, 3, 3))
        layers = [conv, activation(draw), nn.AdaptiveAvgPool1d(2), nn.Flatten()]
        return kind, [*layers, nn.Linear(6, width)], (2, 8)
    if kind == "recurrent":
        layer = draw.one(nn.LSTM, nn.GRU, nn.RNN)
        how = {"batch_first": True, "num_layers": draw.one(1, 2), "dropout": draw.one(0.0, 0.1)}
        if how["num_layers"] == 1:
            how["dropout"] = 0.0
        return kind, [Last(layer(4, width, **how))], (5, 4)
    sparse = draw.chance(0.4)
    embed: nn.Module = draw.one(
        lambda: Mean(nn.Embedding(VOCABULARY, width, sparse=sparse)),
        lambda: Mean(nn.Embedding(VOCABULARY, width, padding_idx=0)),
        lambda: Mean(nn.EmbeddingBag(VOCABULARY, width, mode=draw.one("mean", "sum"))),
        lambda: Mean(nn.EmbeddingBag(VOCABULARY, width, sparse=True)),
        lambda: Transformer(width, draw.chance(0.5)),
    )()
    return kind, [embed], "tokens"


# Odd networks -------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A network with something around it that a forward pass should not do."""

    def __init__(self, net: nn.Module, kind: str, width: int) -> None:
        super().__init__()
        self.net, self.kind = net, kind
        self.fc = nn.Linear(3, 3)
        self.calls, self.kept = 0, None
        if kind == "hidden list":
            self.extra = [nn.Linear(3, 3)]
        if kind == "closure":
            layer = nn.Linear(3, 3)
            self.extra = lambda x: layer(x)  # type: ignore[assignment]
        if kind in ("assigned buffer", "buffer in place"):
            self.register_buffer("ema", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        kind = self.kind
        if kind == "input in place" and x.is_floating_point():
            x.mul_(1.0)
        x = self.net(x)
        if kind in ("hidden list", "closure"):
            x = self.extra[0](x) if isinstance(self.extra, list) else self.extra(x)
        elif kind == "counter":
            self.calls += 1
        elif kind == "cache" and not self.training:
            self.kept = x.detach() if self.kept is None else self.kept  # type: ignore[assignment]
        elif kind == "assigned buffer":
            self.ema = 0.9 * self.ema + 0.1 * x.detach().mean(0)
        elif kind == "buffer in place" and self.training:
            self.ema.add_(x.detach().mean(0))
        elif kind == "dropout in evaluation":
            x = nn.functional.dropout(x, 0.3)
        elif kind == "random":
            x = x + float(np.random.rand())
        elif kind == "detached":
            x = x.detach().requires_grad_(False)
        x = self.fc(x)
        if kind == "tuple":
            return x, x
        if kind == "dict":
            return {"logits": x}
        return (x, x) if kind == "tuple in training" and self.training else x


ODDITIES = (
    "hidden list", "closure", "counter", "cache", "assigned buffer", "buffer in place",
    "dropout in evaluation", "random", "tuple", "dict", "tuple in training", "input in place",
    "spectral norm", "max_norm", "lazy", "old weight norm", "attribute",
)  # fmt: skip


def odd_network(kind: str, layers: list[nn.Module], width: int) -> nn.Module:
    if kind == "spectral norm":
        layers.append(parametrizations.spectral_norm(nn.Linear(width, width)))
    elif kind == "old weight norm":
        layers.append(nn.utils.weight_norm(nn.Linear(width, width)))
    elif kind == "lazy":
        layers.append(nn.LazyLinear(width))
    elif kind == "max_norm":
        layers.insert(0, Mean(nn.Embedding(VOCABULARY, 1, max_norm=0.1)))
    elif kind == "attribute":
        layers[-1].mean = torch.zeros(width)  # type: ignore[assignment]
    elif kind in ODDITIES:
        return Odd(nn.Sequential(*layers, nn.Linear(width, 3)), kind, width)
    net = nn.Sequential(*layers)
    net.add_module("fc", nn.Linear(width, 3))
    return net


# A case -------------------------------------------------------------------------------------------


def draw_case(number: int) -> Case:
    """Case `number`: the same one every time."""
    draw = Draw(number)
    torch.manual_seed(number)
    width = draw.size(3, 9)
    name, layers, shape = first_layer(draw, width)
    names = [name]
    for _ in range(draw.size(1, 4)):
        kind, layer = vector_layer(draw, width)
        names.append(kind)
        layers.append(layer)
        if draw.chance(0.4):
            layers.append(activation(draw))
    odd = draw.one(*ODDITIES) if draw.chance(ODD) else None
    net = odd_network(odd or "", layers, width)
    optimizer = draw.one("sgd", "sgd", "adam", "adamw")
    training = {
        "epochs": draw.size(1, 2),
        "batch_size": draw.one(8, 16, 7),
        "optimizer": optimizer,
        "lr": draw.one(0.003, 0.01),
        "momentum": draw.one(0.0, 0.9),
        "weight_decay": draw.one(0.0, 0.1),
        "codebook_updates_per_epoch": draw.size(1, 2),
    }
    settings = {
        "training": training,
        "pruning": {"iterations": 3, "step": 0.1, "objective": draw.one("sparsity", "bytes")},
        "density": draw.one(0.3, 0.5, 0.8, 1.0),
        "density_exponent": draw.one(0.0, 0.7),
        "bits": draw.one("auto", 2, 4, 8, 32),
        "sharing": draw.one("values", "values", "none"),
        "block": draw.one(1, 1, 4),
        "codebooks": draw.one("layer", "task"),
        "score_init": draw.one("random", "previous_mask"),
        "layer_loss_weight": draw.one(0.0, 0.0, 0.5),
        "init": draw.one("seeded", "pretrained"),
        "max_banks": draw.one(1, 2),
        "seed": number,
    }
    return Case(net, shape, settings, names, odd)


def run_case(number: int) -> str:
    """What became of a case: "worked", or why it was refused; anything else is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)
        warnings.simplefilter("ignore", FutureWarning)  # the old weight norm
        warnings.filterwarnings("ignore", message="Lazy modules")
        case = draw_case(number)
        try:
            learn = TinySubNets(Architecture(case.net), **case.settings)
            trainer = learn.begin(task("a", case.shape, samples=32, seed=number))
        except ArchitectureError as error:
            if "overwrites its input" in str(error) and _fails_in_torch(case):
                return "refused: an activation overwrites what a gradient needs"
            assert case.odd is not None, f"an ordinary network of {case.layers} refused: {error}"
            return f"refused: {case.odd}"
        # "input in place" leaves tokens alone.
        fine = case.odd is None or (case.odd == "input in place" and case.shape == "tokens")
        assert fine, f"{case.odd} was not refused"
        try:
            while not trainer.finished:
                trainer.epoch()
            trainer.finish()
        except TaskError as error:
            return _without_numbers(error, case, learn)
        except ArchitectureError as error:  # in a branch that no pass of the trial took
            assert OVERWRITTEN in str(error) and learn.store.banks == []
            return "refused in training: an activation overwrites what a gradient needs"
        probe = torch.from_numpy(data(case.shape, samples=9, seed=number + 1)[0])
        before, digest = learn.logits("a", probe), learn.store.digest("a")
        assert before.isfinite().all()
        try:
            learn.learn(task("b", case.shape, samples=32, seed=number + 2))
            result = "worked"
        except TaskError as error:
            result = _without_numbers(error, case, learn)
        except ArchitectureError as error:
            assert OVERWRITTEN in str(error) and learn.tasks == ("a",)
            result = "refused in training: an activation overwrites what a gradient needs"
        except CapacityError:
            result = "second task refused: no free weights"
        learn.store.drop_caches_()  # decoded anew from banks and subnets
        assert torch.equal(learn.logits("a", probe), before), "forgotten"
        assert learn.store.digest("a") == digest
        return result


def _fails_in_torch(case: Case) -> bool:
    """Whether plain torch cannot train the network either."""
    inputs = task("plain", case.shape, samples=8).train.inputs()
    try:
        for _ in range(4):  # branches may be skipped
            case.net.train()(inputs.clone()).sum().backward()
    except RuntimeError:
        return True
    return False


def _without_numbers(error: TaskError, case: Case, learn: TinySubNets) -> str:
    """The one reason to stop in training: a row that weight norm divides by is empty."""
    assert re.search("NaN|nan|inf", str(error)), error
    assert learn.architecture.weight_norms(), f"{case.layers}: {error}"
    assert "raise density" in str(error)
    return "task refused: weight norm, an empty row"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    if options.case is not None:
        print(draw_case(options.case))
        print(run_case(options.case))
        return 0
    counts: collections.Counter[str] = collections.Counter()
    for number in range(options.first, options.first + options.cases):
        try:
            counts[run_case(number)] += 1
        except Exception as error:
            counts["failed"] += 1
            print(f"case {number}: {type(error).__name__}: {error}"[:600], flush=True)
    for reason, count in counts.most_common():
        print(f"{count:6}  {reason}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
