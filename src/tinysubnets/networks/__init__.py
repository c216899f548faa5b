"""Functions that build plain `nn.Module`s, by name.

Every network of the package ends in a Linear named `fc`, the head, whose width is the setting
`classes`. All other parameters with two or more dimensions are shared weights. Others are
`timm:NAME`, `torchvision:NAME`, where these libraries are installed, and the user's own
`package.module:function`. Torch, or a library, is imported only when one is built.

>>> build("mlp", in_features=784, hidden=(100, 100)).fc
Linear(in_features=100, out_features=10, bias=True)
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from tinysubnets.errors import ArchitectureError, SettingError, TinySubNetsError, unknown

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "build",
    "check_repeats",
    "defaults",
    "describe",
    "function",
    "is_name",
    "names",
    "pretrained",
    "settings",
]

# name -> (where its function lives, one line for `tsn list`)
_NETWORKS = {
    "mlp": ("tinysubnets.networks.mlp:mlp", "fully connected, 784-100-100 (88,400 weights)"),
    "alexnet": (
        "tinysubnets.networks.alexnet:alexnet",
        "three convolutions, two wide layers, 32x32 images (6,499,328 weights)",
    ),
    "resnet18": (
        "tinysubnets.networks.resnet:resnet18",
        "ResNet-18: width 20, 3x3 stem (1,090,140 weights); width 64, 7x7 stem (11,166,912)",
    ),
    "small-resnet": (
        "tinysubnets.networks.resnet:small_resnet",
        "residual network of depth 20, width 16, for small images (267,696 weights)",
    ),
    "tinynet": (
        "tinysubnets.networks.tinynet:tinynet",
        "four strided convolutions, two layers, 64x64 images (2,743,520 weights)",
    ),
    "vit": ("tinysubnets.networks.vit:vit", "small vision transformer, 32x32 images"),
    "small-mlp": (
        "tinysubnets.networks.mlp:small_mlp",
        "fully connected, 64-64-64, for 8x8 digits",
    ),
    "small-cnn": (
        "tinysubnets.networks.alexnet:small_cnn",
        "two convolutions and a layer, for 1x8x8 digits",
    ),
}


def names() -> tuple[str, ...]:
    """The names of the networks that come with the package."""
    return tuple(_NETWORKS)


def describe(name: str) -> str:
    """One line about a network of the package."""
    if name not in _NETWORKS:
        raise SettingError(unknown("network", name, _NETWORKS))
    return _NETWORKS[name][1]


def settings(name: str) -> tuple[str, ...]:
    """The settings that a network takes, in the order of its function's arguments."""
    return tuple(inspect.signature(function(name)).parameters)


def defaults(name: str) -> dict[str, Any]:
    """The settings that a network need not be given, with the values they have then."""
    found = inspect.signature(function(name)).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value names a network, and no file."""
    if not isinstance(value, str) or Path(value).exists():
        return False
    return ":" in value or value in _NETWORKS


def pretrained(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    *,
    base: bool = False,
    head: str | None = None,
    **settings: Any,
) -> nn.Module:
    """A network with its pretrained weights, which can be a base.

    - `name`: as for `build`. Networks of timm and torchvision come with the weights that these
      libraries fetch; a function of your own returns the network with weights in it.
    - `weights`: a local file of weights by name instead, .safetensors, .pth or .pt.
    - `base`: whether it is to be a base, which has no use for the head: the file may lack it.
    - `head`: the name of that head, as `Architecture` takes it.
    - `settings`: those of the network.
    """
    from tinysubnets.networks import libraries
    from tinysubnets.nn.trial import find_head

    if weights is None and libraries.is_library(name):
        settings = {"pretrained": True} | settings
    elif weights is None and ":" not in name:
        raise SettingError(
            f"network {name!r} has random weights; give a file of its pretrained ones: weights=…, "
            "or --weights FILE on the command line."
        )
    network = build(name, **settings)
    source = name
    if weights is not None:
        if base and head is None:
            head = find_head(network)  # or an error that says how to name it
        libraries.fill_(network, weights, head=_of_head(network, head), needs_head=not base)
        source = Path(weights).name
    settings.pop("pretrained", None)
    network.built_as = _record(name, settings, network) | {"source": source}  # type: ignore[assignment]
    return network


def _of_head(network: nn.Module, head: str | None) -> tuple[str, ...]:
    """The names of the tensors that give the logits, which no base holds; none where unknown."""
    from tinysubnets.nn.trial import check_head, find_head, output_layer

    try:
        head = find_head(network) if head is None else head
        check_head(network, head)
    except ArchitectureError:  # of another network: its weights tell, or whoever wraps it
        return ()
    return output_layer(network, head)


def check_repeats(name: str, network: nn.Module, head: str | None, **settings: Any) -> None:
    """Refuse a base whose weights are drawn anew whenever the user's function is called.

    No later command could build it again.

    - `name`, `settings`: what has built the network, its weights included.
    - `head`: the name of its head, as `Architecture` takes it; no base holds that.
    """
    import torch

    from tinysubnets.networks import libraries

    if ":" not in name or libraries.is_library(name):
        return
    with torch.random.fork_rng(devices=[]):
        again = build(name, **settings).state_dict()
    skipped = _of_head(network, head)
    for key, tensor in network.state_dict().items():
        is_same = key in again and torch.equal(tensor.nan_to_num(), again[key].nan_to_num())
        if key not in skipped and tensor.is_floating_point() and not is_same:
            raise SettingError(
                f"network {name!r} has other weights whenever it is built: {key!r} is not loaded "
                "from anywhere, or drawn without a seed. A base must be the same every time; load "
                "its weights in that function, or give a file of them: weights=…, --weights FILE."
            )


def build(name: str, **settings: Any) -> nn.Module:
    """A new network: one of `names()`, of a library, or what `package.module:function` returns.

    `timm:NAME` and `torchvision:NAME` have random weights but for `pretrained=True`, with which the
    library fetches them. Lists among the settings become tuples, since recipes can only write
    lists. A network of the package remembers how it was built, so that a model made with it needs
    no `net` to be loaded.
    """
    from torch import nn

    make = function(name)
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    _check(name, make, given)
    try:
        network = make(**given)
    except TinySubNetsError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise SettingError(
            f"network {name!r} cannot be built with ({shown}): {type(error).__name__}: {error} "
            f"(in {last.filename}, line {last.lineno})."
        ) from error
    if not isinstance(network, nn.Module):
        raise SettingError(
            f"network {name!r} returned {type(network).__name__}; it must return an nn.Module."
        )
    if ":" not in name:
        network.built_as = _record(name, given, network)  # type: ignore[assignment]
    return network


def _record(name: str, settings: dict[str, Any], network: nn.Module) -> dict[str, Any]:
    """How a network was built; `shown` tells whether its layers were changed since."""
    return {"network": name, "settings": settings, "shown": repr(network)}


def function(name: str) -> Callable[..., Any]:
    """The function that builds a network; its arguments are the network's settings.

    - `name`: one of the package's; one with a colon is a library's or the user's own.
    """
    if isinstance(name, str) and ":" in name:
        from tinysubnets.networks import libraries

        return libraries.builder(name) if libraries.is_library(name) else _imported(name)
    if not isinstance(name, str) or name not in _NETWORKS:
        own = (
            " Your own network is named 'package.module:function', one of a library 'timm:NAME' or "
            "'torchvision:NAME'."
        )
        raise SettingError(unknown("network", name, _NETWORKS) + own)
    return _imported(_NETWORKS[name][0])


def _imported(target: str) -> Callable[..., Any]:
    """The function that `package.module:function` names, looked for in the working folder too."""
    module_name, _, function_name = target.partition(":")
    here = str(Path.cwd())
    # A console script has no working folder on its path, though `python -m` does.
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise SettingError(
            f"network {target!r}: cannot import {module_name!r} ({error}). Give "
            "'package.module:function' of an installed package or of a file in this folder."
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    found = getattr(module, function_name, None)
    if not callable(found):
        raise SettingError(
            f"network {target!r}: {module_name!r} has no function {function_name!r}."
        )
    return found


def _check(name: str, make: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse settings that the function does not take, before it runs."""
    signature = inspect.signature(make)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for key in given:
        if key not in signature.parameters and not open_ended:
            raise SettingError(unknown(f"setting of network {name!r}:", key, signature.parameters))
    try:
        signature.bind(**given)
    except TypeError as error:
        raise SettingError(f"network {name!r}: {error}. It takes {signature}.") from error
