"""Networks that cannot be learned are refused before training, with where and a cure."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nets import learner, mlp, stack, task
from quick import mostly_slow
from tinysubnets.baselines.joint import Naive
from tinysubnets.errors import ArchitectureError
from tinysubnets.nn.architecture import Architecture

OLD_HOOKS = "ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"


class Small(nn.Module):
    """A layer, something of a subclass's own, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.fc = nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x))


class ListedModules(Small):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]

    def hidden(self, x: Tensor) -> Tensor:
        return self.blocks[0](super().hidden(x))


class DeepModules(Small):
    def __init__(self) -> None:
        super().__init__()
        self.parts = {"a": (nn.ReLU(), functools.partial(nn.Linear(8, 8)))}

    def hidden(self, x: Tensor) -> Tensor:
        return self.parts["a"][1](super().hidden(x))


class Lambda(Small):
    def __init__(self) -> None:
        super().__init__()
        self.first = lambda x: torch.relu(self.layer(x))

    def hidden(self, x: Tensor) -> Tensor:
        return self.first(x)


ELSEWHERE = nn.Linear(8, 8)


class Global(Small):
    def hidden(self, x: Tensor) -> Tensor:
        return ELSEWHERE(super().hidden(x))


class CachedWeight(Small):
    """Its second answer would be computed with the first task's weights."""

    cache: Tensor | None = None

    def hidden(self, x: Tensor) -> Tensor:
        if self.training:
            return super().hidden(x)
        if self.cache is None:
            self.cache = self.layer.weight.t()
        return torch.relu(x @ self.cache)


class Ema(Small):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(8))

    def hidden(self, x: Tensor) -> Tensor:
        x = super().hidden(x)
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * x.mean(0).detach()
        return x - self.ema


class EmaInPlace(Ema):
    def hidden(self, x: Tensor) -> Tensor:
        x = Small.hidden(self, x)
        if self.training:
            self.ema.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return x - self.ema


class Counter(Small):
    calls = 0

    def hidden(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().hidden(x)


class DeepCounter(Small):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {"calls": [0]}

    def hidden(self, x: Tensor) -> Tensor:
        self.seen["calls"][0] += 1
        return super().hidden(x)


class LastSeen(Small):
    def hidden(self, x: Tensor) -> Tensor:
        self.last = super().hidden(x)
        return self.last


class LateBuffer(Small):
    def hidden(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(8))
        return super().hidden(x) * self.table


class EvalDropout(Small):
    def hidden(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().hidden(x), 0.5)


class Deep(nn.Module):
    """Dropout that never rests, below another module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), Noise())
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(())


class PythonNoise(Small):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) * random.random()


class NumpyNoise(Small):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) * float(np.random.rand())


CALLS = {"number": 0}


class GlobalState(Small):
    def hidden(self, x: Tensor) -> Tensor:
        CALLS["number"] += 1
        return super().hidden(x) * CALLS["number"]


class InputInPlace(Small):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x.clamp_(min=-100))


class Detached(Small):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Many(Small):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class Named(Small):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x), "loss": None}


class Auxiliary(Small):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Labels(Small):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).round().long()


class Lookup(nn.Module):
    """An embedding, looked up by its layer or by a function."""

    def __init__(self, embed: nn.Module, **how: Any) -> None:
        super().__init__()
        self.embed, self.how = embed, how
        self.fc = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.how:
            found = self.embed(tokens)
        else:
            found = nn.functional.embedding(tokens, self.embed.weight, **self.how)  # type: ignore[arg-type]
        return self.fc(found.mean(1) if found.ndim == 3 else found)


REFUSED: list[tuple[Callable[[], nn.Module], Any, str]] = [
    (ListedModules, (6,), r"keeps a Linear in 'blocks\[0\]'.*nn.ModuleList"),
    (DeepModules, (6,), r"keeps a Linear in \"parts\['a'\]\[1\].func\".*nn.ModuleDict"),
    (Lambda, (6,), r"'layer.weight'.*lambda.*method"),
    (Global, (6,), r"a weight of shape \(8.*no parameter of the network"),
    (CachedWeight, (6,), r"CachedWeight \(the network\) changes a tensor in 'cache'"),
    (Ema, (6,), r"assigns self.ema.*running statistics"),
    (EmaInPlace, (6,), r"training changes the tensors \['ema'\]"),
    (Counter, (6,), r"Counter \(the network\).*'calls'.*in evaluation"),
    (DeepCounter, (6,), r"\"seen\['calls'\]\[0\]\""),
    (LastSeen, (6,), r"a tensor in 'last'"),
    (LateBuffer, (6,), r"'table'.*__init__"),
    (EvalDropout, (6,), r"EvalDropout \(the network\) draws from torch's generator"),
    (Deep, (6,), r"Noise body.1 draws from torch's generator.*self.training"),
    (PythonNoise, (6,), "Python's generator"),
    (NumpyNoise, (6,), "numpy's generator"),
    (GlobalState, (6,), r"GlobalState \(the network\) gives another output"),
    (InputInPlace, (6,), "changes its inputs in place.*inplace=False"),
    (lambda: stack(nn.ReLU(True), nn.Linear(6, 8), head=8), (6,), "changes its inputs in place"),
    (
        lambda: stack(nn.Linear(6, 8), nn.Tanh(), nn.ReLU(inplace=True), head=8),
        (6,),
        "overwrites its input inplace=False",
    ),
    (Detached, (6,), "no gradient reaches any weight"),
    (Many, (6,), r"gave a tuple; .*\(2, 3\).*self.net\(x\)\[0\]"),
    (Named, (6,), r"gave a dict with \['logits', 'loss'\].*name the head 'net.fc'"),
    (Auxiliary, (6,), "gave a tuple"),
    (Labels, (6,), "floating point"),
    (lambda: Lookup(nn.Embedding(12, 8, max_norm=9.0)), "tokens", "Embedding embed has max_norm"),
    (lambda: Lookup(nn.EmbeddingBag(12, 8, max_norm=9.0)), "tokens", "has max_norm"),
    (
        lambda: Lookup(nn.Embedding(12, 8), max_norm=1e-3),
        "tokens",
        r"evaluation changes the tensors \['embed.weight'\]",
    ),
    (lambda: Lookup(nn.Embedding(12, 8), sparse=True), "tokens", "'embed.weight' is sparse"),
    (
        lambda: stack(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), head=8),
        (6,),
        "spectral norm.*weight_norm",
    ),
    (lambda: stack(torch.nn.utils.spectral_norm(nn.Linear(6, 8)), head=8), (6,), "spectral norm"),
    (
        lambda: stack(torch.nn.utils.weight_norm(nn.Linear(6, 8)), head=8),
        (6,),
        "parametrizations.weight_norm",
    ),
]


@pytest.mark.filterwarnings(OLD_HOOKS)
@pytest.mark.parametrize(("make", "shape", "message"), REFUSED)
def test_refused_with_its_name_and_a_cure(
    make: Callable[[], nn.Module], shape: Any, message: str
) -> None:
    state = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[2]
    built = make()
    torch.random.set_rng_state(state[0])
    for _ in range(2):  # nothing that a trial did makes the next one blind
        with pytest.raises(ArchitectureError, match=message):
            learner(built).begin(task(shape=shape))
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert (random.getstate(), np.random.get_state()[2]) == state[1:]
    with pytest.raises(ArchitectureError, match=message):
        Naive(Architecture(built)).begin(task(shape=shape))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="TorchScript"):
        learner(torch.jit.script(mlp()))


class Skipped(Small):
    """A branch that training often leaves out, by one of three generators."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.branch, self.draw = nn.Linear(8, 8), draw

    def hidden(self, x: Tensor) -> Tensor:
        x = super().hidden(x)
        if not self.training or self.draw() < 0.4:
            x = x + torch.relu(self.branch(x))
        return x


class Unused(Small):
    """A layer that no pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(8, 8)


class Activations(Small):
    """Functions in a plain list hold nothing that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.activations = [nn.ReLU(inplace=True), nn.Tanh()]

    def hidden(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for activation in self.activations:
            x = activation(x)
        return x


ACCEPTED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "in place": (lambda: stack(nn.Linear(6, 8), nn.ReLU(inplace=True), head=8), (6,)),
    "activations": (Activations, (6,)),
    "skipped by torch": (lambda: Skipped(functools.partial(torch.rand, ())), (6,)),
    "skipped by numpy": (lambda: Skipped(lambda: np.random.rand()), (6,)),
    "skipped by Python": (lambda: Skipped(lambda: random.random()), (6,)),
    "unused": (Unused, (6,)),
    "sparse": (lambda: Lookup(nn.Embedding(12, 8, sparse=True)), "tokens"),
    "sparse bag": (lambda: Lookup(nn.EmbeddingBag(12, 8, sparse=True)), "tokens"),
    "sync": (lambda: stack(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.ReLU(), head=8), (6,)),
    "sync, cumulative": (
        lambda: stack(nn.Linear(6, 8), nn.SyncBatchNorm(8, momentum=None), head=8),
        (6,),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("optimizer", mostly_slow(["sgd", "adam", "adamw"], quick=["adamw"]))
def test_ordinary_networks_are_learned_with_every_optimizer(name: str, optimizer: str) -> None:
    make, shape = ACCEPTED[name]
    training = {"optimizer": optimizer, "momentum": 0.9, "lr": 0.01, "weight_decay": 0.01}
    net = make()
    answers = []
    for _ in range(2):
        learn = learner(net, training=training, layer_loss_weight=0.5, density=0.6)
        for number in range(2):
            learn.learn(task(f"t{number}", shape, seed=number))
        probe = task(shape=shape).train.inputs()
        answers.append(learn.logits("t0", probe))
        built = learn.store.module("t0")
        assert torch.equal(built(probe), answers[-1])
    assert answers[0].isfinite().all() and torch.equal(*answers)  # stochastic depth is seeded too
    assert copy.deepcopy(learn.architecture).num_shared == learn.architecture.num_shared


@pytest.mark.parametrize("method", ["naive", "ewc", "si", "lwf", "gem", "a-gem"])
@pytest.mark.parametrize("name", ["skipped by torch", "unused", "in place"])
def test_dense_methods_learn_branches_without_gradient(method: str, name: str) -> None:
    from tinysubnets.experiments import methods

    make, shape = ACCEPTED[name]
    training = {"epochs": 1, "batch_size": 16, "lr": 0.01, "optimizer": "sgd", "momentum": 0.9}
    learn = methods.build(method, Architecture(make()), settings={}, training=training, seed=0)
    for number in range(2):
        learn.learn(task(f"t{number}", shape, seed=number))
    assert learn.logits("t1", task(shape=shape).train.inputs()).isfinite().all()


class Passes(Small):
    """It counts its passes where no trial can see it, and tells them apart by mode."""

    def __init__(self, passes: list[bool]) -> None:
        super().__init__()
        type(self).passes = passes  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(self.training)  # type: ignore[attr-defined]
        return super().forward(x)


def test_a_network_is_tried_once_for_inputs_of_a_shape() -> None:
    passes: list[bool] = []
    learn = learner(Passes(passes))
    counts = []
    for name, classes in (("a", 3), ("b", 3), ("c", 4), ("d", 4)):
        learn.begin(task(name, classes=classes))
        counts.append(len(passes))
        passes.clear()
    assert counts == [3, 0, 1, 0]  # two passes in evaluation and one in training; a wider head


def test_a_shape_that_fails_is_tried_again() -> None:
    learn = learner(mlp())
    for _ in range(2):
        with pytest.raises(ArchitectureError, match="fails on"):
            learn.begin(task(shape=(7,)))
    learn.begin(task())


class Rare(Small):
    """A pass that fails for some inputs only."""

    def hidden(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 2:
            raise IndexError("index out of range in self")
        return super().hidden(x)


def test_what_fails_in_training_only_is_explained_and_leaves_nothing_behind() -> None:
    learn = learner(Rare())
    with pytest.raises(ArchitectureError, match=r"in training on 'a': IndexError: index out of"):
        learn.learn(task())
    assert learn.store.banks == [] and learn.tasks == ()


class OwnInput(nn.Module):
    """A layer that changes what it is given; its network does not mind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1.0) @ self.weight


def test_a_layer_that_overwrites_its_input_has_no_layer_wise_loss() -> None:
    net = stack(nn.Linear(6, 8), OwnInput(), head=8)
    learner(net).learn(task())
    with pytest.raises(ArchitectureError, match=r"layer 1 overwrites its own input.*layer_loss"):
        learner(net, layer_loss_weight=0.5).learn(task())
