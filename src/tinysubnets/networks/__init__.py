"""Functions that build plain `nn.Module`s, by name.

Every network ends in a Linear named `fc`, the head, whose width is the setting `classes`. All other
parameters with two or more dimensions are shared weights. Torch is imported only when one is built.

>>> build("mlp", in_features=784, hidden=(100, 100)).fc
Linear(in_features=100, out_features=10, bias=True)
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.errors import SettingError, TinySubNetsError, unknown

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "defaults", "describe", "function", "names", "settings"]

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


def function(name: str) -> Callable[..., Any]:
    """The function that builds a network; its arguments are the network's settings."""
    return _find(name)


def settings(name: str) -> tuple[str, ...]:
    """The settings that a network takes, in the order of its function's arguments."""
    return tuple(inspect.signature(_find(name)).parameters)


def defaults(name: str) -> dict[str, Any]:
    """The settings that a network need not be given, with the values they have then."""
    found = inspect.signature(_find(name)).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


def build(name: str, **settings: Any) -> nn.Module:
    """A new network: one of `names()`, or what the user's `package.module:function` returns.

    Lists among the settings become tuples, since recipes can only write lists. A network of the
    package remembers how it was built, so that a model made with it needs no `net` to be loaded.
    """
    from torch import nn

    function = _find(name)
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    _check(name, function, given)
    try:
        network = function(**given)
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
            f"network {name!r} returned a {type(network).__name__}; it must return an nn.Module."
        )
    if ":" not in name:
        network.built_as = {"network": name, "settings": given, "shown": repr(network)}  # type: ignore[assignment]
    return network


def _find(name: str) -> Callable[..., Any]:
    """The function behind a name; a name with a colon is the user's own."""
    if ":" in name:
        return _imported(name)
    if name not in _NETWORKS:
        own = " Your own network is named 'package.module:function'."
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
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SettingError(
            f"network {target!r}: {module_name!r} has no function {function_name!r}."
        )
    return function


def _check(name: str, function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse settings that the function does not take, before it runs."""
    signature = inspect.signature(function)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for key in given:
        if key not in signature.parameters and not open_ended:
            raise SettingError(unknown(f"setting of network {name!r}:", key, signature.parameters))
    try:
        signature.bind(**given)
    except TypeError as error:
        raise SettingError(f"network {name!r}: {error}. It takes {signature}.") from error
