"""Operations: multiply-adds and bit operations of a learned task, counted from the real layers.

Every layer is watched while one sample passes through the network. A weight of a layer takes part
in as many products as there are positions it is applied to, so a layer costs (its weights kept by
the task's mask) × (positions). Additions of biases, normalization, activations and pooling are not
counted; look-ups in embeddings multiply nothing and cost 0.

`torch.utils.flop_counter` gives the same sums for linear layers and convolutions, and a test holds
both together. It cannot take its place: of an LSTM and of fused attention it counts nothing,
without a word, and it does not tell which weight takes part, whose mask decides what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tinysubnets.errors import SettingError
from tinysubnets.model.store import SubnetStore

FLOAT_FACTOR = 9.0
"""How many 8-bit operations one float operation is in the paper's table (it uses 9 to 9.5)."""

_FREE = (nn.Embedding, nn.EmbeddingBag, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Product:
    """Products of one kind in one layer: multiply-adds when dense, and the share that is kept."""

    layer: str
    kind: str
    macs: int
    density: float = 1.0

    @property
    def effective_macs(self) -> int:
        """The multiply-adds that remain under the task's mask."""
        return round(self.macs * self.density)


@dataclass(frozen=True)
class Operations:
    """The cost of one sample: all products, and layers with weights that could not be counted."""

    products: tuple[Product, ...]
    uncounted: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-adds of the dense network."""
        return sum(p.macs for p in self.products)

    @property
    def effective_macs(self) -> int:
        """Multiply-adds that remain under the task's mask."""
        return sum(p.effective_macs for p in self.products)

    def bit_operations(self, bits: int, *, dense: bool = False) -> int:
        """Multiply-adds × weight bits × activation bits, both of the same width."""
        return (self.macs if dense else self.effective_macs) * bits * bits


def paper_operations(macs: int, bits: int | None, sparsity: float = 0.0) -> float:
    """The paper's own count: 4 : 8 : 16 bits = 1 : 4 : 16, float (None) = 9 × 8 bits.

    `sparsity` is Υ, the share of weights that no task owns; the paper's "+ p" columns are
    multiplied by 1 − Υ. One 8-bit multiply-add counts 64, so that both conventions share a unit.

    >>> paper_operations(10, 8), paper_operations(10, 8, 0.25), paper_operations(10, None)
    (640.0, 480.0, 5760.0)
    """
    if bits not in (4, 8, 16, None):
        raise SettingError(f"bits = {bits!r} is not allowed; give 4, 8, 16, or None for float.")
    factor = FLOAT_FACTOR * 64 if bits is None else bits * bits
    return float(macs * factor * (1.0 - sparsity))


def count(net: nn.Module, inputs: Tensor) -> Operations:
    """The dense operations of a plain network per sample."""
    return _watch(net, lambda: net(inputs), len(inputs), {})


def task_operations(store: SubnetStore, task: str, inputs: Tensor) -> Operations:
    """The operations of a learned task for one raw sample, with the densities of its own mask.

    A difference to another task, or to a base, multiplies by the weights of that one too.
    """
    subnet, architecture = store.subnet(task), store.architecture
    alone = subnet.reference is None
    used = store.layout.expand(subnet.mask) if alone else store.weights(task) != 0
    masks = architecture.split(used)
    densities = {n: float(m.double().mean()) for n, m in masks.items()}
    densities |= {a: densities[n] for a, n in architecture.aliases.items() if n in densities}
    normalized = subnet.normalization(inputs[:1].to(store.device))
    tensors = store.tensors(task)
    return _watch(
        architecture.code("eval"), lambda: architecture(tensors, normalized), 1, densities
    )


def _watch(
    net: nn.Module, run: Callable[[], Any], num_samples: int, densities: Mapping[str, float]
) -> Operations:
    """Run the network once and count the products of every layer it calls."""
    found: list[tuple[str, str, str | None, int]] = []
    uncounted: list[str] = []
    with _hooks(net, found, uncounted), torch.no_grad():
        run()
    products = [
        Product(layer, kind, macs // num_samples, _density(densities, layer, leaf))
        for layer, kind, leaf, macs in found
    ]
    return Operations(tuple(products), tuple(dict.fromkeys(uncounted)))


@contextmanager
def inner_layers_called() -> Iterator[None]:
    """Inside, transformers call every layer in them; their fused path would call none."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def _hooks(
    net: nn.Module, found: list[tuple[str, str, str | None, int]], uncounted: list[str]
) -> Iterator[None]:
    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            counted = layer_products(module, args, kwargs, output)
            if counted is None:
                uncounted.append(name)
            else:
                found.extend((name, type(module).__name__, leaf, macs) for leaf, macs in counted)

        return module.register_forward_hook(hook, with_kwargs=True)

    handles = [watch(n, m) for n, m in net.named_modules() if _owns_weights(m)]
    try:
        with inner_layers_called():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _owns_weights(module: nn.Module) -> bool:
    direct = any(p.ndim >= 2 for p in module.parameters(recurse=False))
    return direct or hasattr(module, "parametrizations") or isinstance(module, _COUNTED)


def layer_products(
    module: nn.Module, args: Any, kwargs: Any, output: Any
) -> list[tuple[str | None, int]] | None:
    """What one call of a layer multiplies: (weight name, multiply-adds); None if unknown."""
    if isinstance(module, _FREE):
        return []
    if isinstance(module, nn.Linear):
        return [("weight", module.weight.numel() * (output.numel() // module.out_features))]
    if isinstance(module, _ConvTransposeNd):
        return [("weight", module.weight.numel() * (args[0].numel() // module.in_channels))]
    if isinstance(module, _ConvNd):
        return [("weight", module.weight.numel() * (output.numel() // module.out_channels))]
    if isinstance(module, nn.MultiheadAttention):
        return _attention(module, args, kwargs)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return _recurrent(module, args[0])
    return None


def _attention(
    module: nn.MultiheadAttention, args: Any, kwargs: Any
) -> list[tuple[str | None, int]]:
    """Projections of query, key and value, both attention products, and the output projection."""
    query, key, value = (
        args[i] if len(args) > i else kwargs[n] for i, n in enumerate(("query", "key", "value"))
    )
    width = module.embed_dim
    tokens = [t.numel() // t.shape[-1] for t in (query, key, value)]
    length = key.shape[1 if key.ndim == 3 and module.batch_first else 0]
    seen = length + (module.bias_k is not None) + bool(module.add_zero_attn)
    names: list[str] = ["in_proj_weight"] * 3
    if module.in_proj_weight is None:
        names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    projections: list[tuple[str | None, int]] = [
        (n, count * t.shape[-1] * width)
        for n, count, t in zip(names, tokens, (query, key, value), strict=True)
    ]
    products = (None, 2 * tokens[0] * seen * width)
    return [*projections, products, ("out_proj.weight", tokens[0] * width * width)]


def _recurrent(module: nn.RNNBase | nn.RNNCellBase, inputs: Any) -> list[tuple[str | None, int]]:
    """Every weight matrix of every layer and direction once per time step."""
    data = inputs.data if isinstance(inputs, nn.utils.rnn.PackedSequence) else inputs
    steps = data.numel() // data.shape[-1]
    return [
        (n, p.numel() * steps) for n, p in module.named_parameters(recurse=False) if p.ndim == 2
    ]


def _density(densities: Mapping[str, float], layer: str, leaf: str | None) -> float:
    """The share of a weight that the mask keeps; 1 for products without shared weights."""
    if leaf is None:
        return 1.0
    prefix = f"{layer}." if layer else ""
    # Weight normalization scales rows of what the mask zeroes, so zeros stay where they are.
    names = (f"{prefix}{leaf}", f"{prefix}parametrizations.{leaf}.original1")
    return next((densities[n] for n in names if n in densities), 1.0)


_COUNTED = (nn.Linear, _ConvNd, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
