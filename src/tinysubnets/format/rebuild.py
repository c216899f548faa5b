"""The network of a model: rebuilt by name, or given again and checked against the record."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from tinysubnets import networks
from tinysubnets.errors import ArchitectureError, DamageError, MismatchError, SettingError
from tinysubnets.format import limits
from tinysubnets.format.header import Manifest
from tinysubnets.model.bank import Base, BaseSource, base_values
from tinysubnets.model.store import SubnetStore
from tinysubnets.networks.libraries import read_weights
from tinysubnets.nn.architecture import Architecture, TensorSpec
from tinysubnets.nn.init import weights_hash


def architecture_for(
    manifest: Manifest,
    constants: Mapping[str, Tensor],
    net: nn.Module | Architecture | None,
    *,
    embedded: bool = False,
) -> Architecture:
    """The architecture of a model, from the network given or from its recorded name.

    - `constants`: the recorded constant buffers, by name.
    - `embedded`: whether the file holds the values of a base, which are no network yet.
    """
    given = net is not None
    if isinstance(net, Architecture):
        _compare({s.name: s.shape for s in (*net.shared, *net.task_params)}, manifest)
        _compare_shared(net, manifest)
        architecture = copy.copy(net)
    else:
        if net is None and not is_rebuilt(manifest):
            raise MismatchError(_needed(manifest, embedded))
        net = _rebuilt(manifest, constants) if net is None else net
        if not isinstance(net, nn.Module):
            raise MismatchError(f"net: a torch.nn.Module is needed, not {type(net).__name__}.")
        architecture = _wrapped(net, manifest)
    architecture.rebuild = manifest.rebuild
    if not given:
        architecture.pretrained = {}  # a network that was rebuilt has no values
    _take_constants(architecture, constants)
    # What a fresh vector starts from belongs to the model, whichever instance was given now.
    start = {s.name: s.constant for s in manifest.task_params}
    architecture.task_params = tuple(
        TensorSpec(s.name, s.shape, start[s.name]) for s in architecture.task_params
    )
    return architecture


def is_rebuilt(manifest: Manifest) -> bool:
    """Whether a model's network is one of the package, which needs not be given again."""
    record = manifest.rebuild
    name = None if record is None else record.get("network")
    return isinstance(name, str) and ":" not in name


def _needed(manifest: Manifest, embedded: bool) -> str:
    """The message for a model whose network has to be given: it is none of the package."""
    name = (manifest.rebuild or {}).get("network")
    told = f", {name!r}" if isinstance(name, str) else ""
    made = f"this model was made with a network of your own{told}"
    kinds = "MODULE:FUNCTION, timm:NAME or torchvision:NAME"
    if manifest.base is None:
        return f"{made}; give it again: load(…, net=…), or --net on the command line: {kinds}."
    if embedded:
        return (
            f"{made}, and holds the weights of its base, but no code; give the network, with any "
            f"weights: load(…, net=…), or --net on the command line: {kinds}."
        )
    return (
        f"{made}, over its pretrained weights; give it with them: load(…, net=…), or --base on the "
        f"command line: {kinds}; where they lie in a file, --net and --base FILE."
    )


def base_for(store: SubnetStore, given: BaseSource | None) -> Base | None:
    """The base of a store that was read, with its values where they are at hand.

    They are in the file, or `given`, or those of the store's network, where that was given. Others
    than the file names are refused.
    """
    base, architecture = store.base, store.architecture
    if base is None:
        if given is not None:
            raise MismatchError("base: this model was not learned over a base; leave it out.")
        return None
    if given is not None:
        values = base_values(architecture, _tensors_of(given, architecture))
        whose = "the base given"
        if isinstance(given, (str, os.PathLike)):
            whose = f"the file {os.fspath(given)}"
        return base.filled(values, whose)
    if base.values is not None or not architecture.pretrained:
        return base
    values = base_values(architecture, architecture.pretrained)
    if not store.needs_base() and weights_hash(values) != base.sha256:
        return base  # learning began from it, but no task needs it to be used
    return base.filled(values, "the network given")


def _tensors_of(given: BaseSource, architecture: Architecture) -> Mapping[str, Tensor]:
    if isinstance(given, Architecture):
        return given.pretrained
    if isinstance(given, nn.Module):
        return dict(given.named_parameters()) | dict(given.named_buffers())
    if isinstance(given, Mapping):
        return given
    return read_weights(given, [s.name for s in architecture.fixed_tensors])


def _wrapped(net: nn.Module, manifest: Manifest) -> Architecture:
    """The network given as an architecture, if its tensors are those on record."""
    names = {s.name for s in manifest.layout.shared}
    found = {n: tuple(p.shape) for n, p in net.named_parameters()}
    buffers = {n: tuple(b.shape) for n, b in net.named_buffers()}
    task_params = {s.name for s in manifest.task_params}
    _compare(found | {n: s for n, s in buffers.items() if n in task_params}, manifest)
    try:
        architecture = Architecture(net, manifest.head, shared=lambda name, _: name in names)
    except ArchitectureError as error:
        raise MismatchError(f"the network given does not fit the model: {error}") from error
    _compare_shared(architecture, manifest)
    return architecture


def _compare(found: Mapping[str, tuple[int, ...]], manifest: Manifest) -> None:
    """Insist on the recorded names and shapes; a mismatch prints both sides."""
    recorded = {s.name: s.shape for s in (*manifest.layout.shared, *manifest.task_params)}
    lines = []
    for name in [*recorded, *(n for n in found if n not in recorded)]:
        ours, given = recorded.get(name), found.get(name)
        alike = ours == given
        if name in manifest.outputs and ours is not None and given is not None:
            alike = ours[1:] == given[1:]  # every task has a head of its own width
        if not alike:
            lines.append(f"  {name}: model {_show(ours)}, network {_show(given)}")
    if lines:
        more = f"\n  … and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise MismatchError(
            "the network given is not the one this model was made with:\n"
            + "\n".join(lines[:20])
            + more
        )


def _show(shape: tuple[int, ...] | None) -> str:
    return "has none" if shape is None else str(shape)


def _compare_shared(architecture: Architecture, manifest: Manifest) -> None:
    sides = [[s.name for s in part] for part in (manifest.layout.shared, architecture.shared)]
    if sides[0] != sides[1]:
        raise MismatchError(
            "the network's tensors are shared otherwise than in the model:\n"
            f"  model   {', '.join(sides[0])}\n  network {', '.join(sides[1])}"
        )


def _take_constants(architecture: Architecture, constants: Mapping[str, Tensor]) -> None:
    """Put the recorded constant buffers in place of those of the network given."""
    sides = [
        {n: (tuple(t.shape), t.dtype) for n, t in part.items()}
        for part in (constants, architecture.constants)
    ]
    if sides[0] != sides[1]:
        raise MismatchError(f"constant buffers differ:\n  model   {sides[0]}\n  network {sides[1]}")
    architecture.constants = {n: constants[n] for n in architecture.constants}


def _rebuilt(manifest: Manifest, constants: Mapping[str, Tensor]) -> nn.Module:
    """A network of this package by its recorded name, without initial values."""
    record = manifest.rebuild or {}
    settings = record.get("settings", {})
    if not isinstance(settings, dict):
        raise DamageError("config: the settings of the network are not a table.")
    most = len(manifest.layout.shared) + len(manifest.task_params)
    try:
        # On the meta device nothing is allocated, whatever sizes a forged file asks for.
        with torch.device("meta"), _at_most(most):
            net = networks.build(record["network"], **settings)
    except DamageError:
        raise
    except (SettingError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise MismatchError(
            f"the network {record['network']!r} cannot be rebuilt: {error} "
            "Give it yourself: load(…, net=…)."
        ) from error
    found = {n: tuple(p.shape) for n, p in net.named_parameters()}
    task_params = {s.name for s in manifest.task_params}
    found |= {n: tuple(b.shape) for n, b in net.named_buffers() if n in task_params}
    _compare(found, manifest)
    limits.check_network(found, manifest)
    return _filled(net, manifest, constants)


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Stop building a network that has more tensors than its file says."""
    seen = 0

    def count_one(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen > 4 * count + 64:
            raise DamageError(f"config: the network has more than the {count} tensors recorded.")

    with register_module_parameter_registration_hook(count_one):
        yield


def _filled(net: nn.Module, manifest: Manifest, constants: Mapping[str, Tensor]) -> nn.Module:
    """The network with the recorded constants; matrices stay untouched and so cost no memory."""
    start = {s.name: s.constant for s in manifest.task_params}
    places: dict[
        int, nn.Parameter
    ] = {}  # not `to_empty`, which first imports half a second of code
    for prefix, module in net.named_modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in places:
                    name = f"{prefix}.{leaf}" if prefix else leaf
                    constant = start.get(name)
                    # Every task has a head of its own width: of this one only the shape is needed.
                    size = (1,) * parameter.ndim if name in manifest.outputs else parameter.shape
                    values = torch.empty(size)
                    if constant is not None:
                        values.fill_(constant)
                    places[id(parameter)] = nn.Parameter(values.expand(parameter.shape))
                module._parameters[leaf] = places[id(parameter)]
        for leaf, buffer in module._buffers.items():
            if buffer is not None:
                name = f"{prefix}.{leaf}" if prefix else leaf
                known = constants.get(name)
                fits = known is not None and known.shape == buffer.shape
                # Statistics have been compared, counters have one value; no other may take room.
                if not fits and name not in start and buffer.numel() > 1:
                    raise MismatchError(f"the model holds no constant buffer {name!r} that fits.")
                module._buffers[leaf] = (
                    known if fits else torch.zeros(buffer.shape, dtype=buffer.dtype)
                )
    return net
