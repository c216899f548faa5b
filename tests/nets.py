"""Small networks and tasks for tests: one of every kind of layer, and data that take no time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.subnet import Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

VOCABULARY = 12


def stack(*layers: nn.Module, head: int, classes: int = 3) -> nn.Sequential:
    """Layers in a row and a Linear head named `fc`."""
    named = [(str(i), layer) for i, layer in enumerate(layers)]
    return nn.Sequential(OrderedDict([*named, ("fc", nn.Linear(head, classes))]))


def mlp(inputs: int = 6, hidden: int = 10, classes: int = 3) -> nn.Module:
    return stack(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        head=hidden,
        classes=classes,
    )


def conv1d() -> nn.Module:
    return stack(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), head=4 * 6)


def conv2d() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten()]
    return stack(*layers, head=4 * 16)


def conv3d() -> nn.Module:
    return stack(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Flatten(), head=3 * 27)


def conv_transpose() -> nn.Module:
    layers = [nn.ConvTranspose2d(2, 3, 2, stride=2), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten()]
    return stack(*layers, head=3 * 16)


class TiedEmbedding(nn.Module):
    """Tokens to vectors and back to tokens by one tied matrix, then the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.back = nn.Linear(8, VOCABULARY, bias=False)
        self.back.weight = self.embed.weight
        self.fc = nn.Linear(VOCABULARY, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.back(self.embed(tokens).mean(1))))


class Attention(nn.Module):
    """Multi-head attention over a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Encoder(nn.Module):
    """Token embeddings, a class token, one transformer layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        return self.fc(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    """A recurrent layer read at the last step."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.recurrent = kind(8, 6, batch_first=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.recurrent(x)[0][:, -1])


class Residual(nn.Module):
    """A small ResNet with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.stem(x)))
        x = torch.relu(x + self.norm2(self.conv(x)))
        return self.fc(self.drop(nn.functional.max_pool2d(x, 2).flatten(1)))


def group_norm() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()]
    return stack(*layers, head=4 * 16)


def layer_norm() -> nn.Module:
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.PReLU()]
    return stack(*layers, head=8)


def weight_norm() -> nn.Module:
    # Wide rows: a row without any weight has no direction, and so no normalized form.
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(32, 8))
    return stack(layer, nn.ReLU(), head=8)


# name -> (how to build it, the shape of one sample or "tokens")
NETWORKS: dict[str, tuple[Any, tuple[int, ...] | str]] = {
    "mlp": (mlp, (6,)),
    "conv1d": (conv1d, (2, 8)),
    "conv2d": (conv2d, (1, 6, 6)),
    "conv3d": (conv3d, (1, 4, 4, 4)),
    "conv_transpose": (conv_transpose, (2, 6, 6)),
    "tied_embedding": (TiedEmbedding, "tokens"),
    "attention": (Attention, (5, 8)),
    "transformer": (Encoder, "tokens"),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 8)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 8)),
    "batchnorm_resnet": (Residual, (1, 6, 6)),
    "groupnorm": (group_norm, (1, 6, 6)),
    "layernorm": (layer_norm, (6,)),
    "weight_norm": (weight_norm, (32,)),
}


def data(
    shape: tuple[int, ...] | str = (6,),
    *,
    samples: int = 48,
    classes: int = 3,
    seed: int = 0,
    offset: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs whose class shows: noise around one random center per class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    if shape == "tokens":
        likely = rng.integers(0, VOCABULARY, (classes, 3))
        tokens = rng.integers(0, VOCABULARY, (samples, 7))
        picks = rng.integers(0, 3, (samples, 4))
        tokens[:, ::2] = np.take_along_axis(likely[labels], picks, 1)
        return tokens, labels
    centers = rng.normal(size=(classes, *shape))
    noise = rng.normal(size=(samples, *shape))
    return (centers[labels] + 0.7 * noise + offset).astype(np.float32), labels


def task(name: str = "a", shape: tuple[int, ...] | str = (6,), **how: Any) -> Task:
    """A small task; keywords go to `data` or to `Task.from_arrays`."""
    given = {k: how.pop(k) for k in ("samples", "classes", "seed", "offset") if k in how}
    x, y = data(shape, **given)
    return Task.from_arrays(name, x, y, **({"valid": 0.25} | how))


TRAINING: dict[str, Any] = {"epochs": 2, "batch_size": 16, "lr": 0.02}


def points(number: int, classes: int = 3) -> Task:
    """Points around one center per class, moved from task to task."""
    generator = np.random.default_rng(number)
    centers = generator.normal(size=(classes, 12)) * 2
    labels = np.arange(120) % classes
    inputs = (centers[labels] + generator.normal(size=(120, 12))).astype(np.float32)
    return Task.from_arrays(f"t{number}", inputs, labels, valid=0.3)


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gray 8x8 images, dark or bright on the left, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = rng.integers(60, 120, (count, 1, 8, 8), dtype=np.uint8)
    images[labels == 1, :, :, :4] += 100
    return images, np.array(["dark", "bright"])[labels]


def learner(net: nn.Module | None = None, *, training: Any = None, **settings: Any) -> TinySubNets:
    """A quick learner: two epochs, and a short post-pruning."""
    pruning = settings.pop("pruning", {"iterations": 4, "step": 0.05})
    architecture = Architecture(mlp() if net is None else net)
    return TinySubNets(
        architecture, training=TRAINING | (training or {}), pruning=pruning, **settings
    )


def learned(learner: TinySubNets, task: Task) -> Subnet:
    """The subnet of a task that was just learned."""
    learner.learn(task)
    return learner.store.subnet(task.name)
