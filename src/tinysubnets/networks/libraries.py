"""Networks of other libraries by name, and files of weights.

timm and torchvision are extras: they are imported only when a network of theirs is asked for.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tinysubnets.errors import SettingError, install_command, unknown
from tinysubnets.files import reading

NESTED = ("state_dict", "model_state_dict", "model", "net")  # where training scripts put weights
AS_SAVED = "Give a .safetensors file, or what torch.save(net.state_dict(), …) writes."


def is_library(name: str) -> bool:
    """Whether a name is one of a library's networks, such as "timm:resnet18"."""
    return name.partition(":")[0] in LIBRARIES


def builder(name: str) -> Callable[..., nn.Module]:
    """The function that builds a library's network."""
    library, _, network = name.partition(":")
    return LIBRARIES[library](network)


def _timm(network: str) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **settings: Any) -> nn.Module:
        timm = _needed("timm")
        # "hf-hub:OWNER/NAME" is one of the Hub's, which timm itself looks for.
        if ":" not in network and not timm.is_model(network):
            raise SettingError(
                unknown("network of timm", network, timm.list_models(), "timm.list_models()")
                + " One of the Hub is named 'timm:hf-hub:OWNER/NAME'."
            )
        net: nn.Module = timm.create_model(network, pretrained=pretrained, **settings)
        return net

    return build


def _torchvision(network: str) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **settings: Any) -> nn.Module:
        models = _needed("torchvision.models")
        known = models.list_models()
        if network not in known:
            listed_by = "torchvision.models.list_models()"
            raise SettingError(unknown("network of torchvision", network, known, listed_by))
        weights = "DEFAULT" if pretrained else None
        net: nn.Module = models.get_model(network, weights=weights, **settings)
        if (config := _trained_on(models, network)) is not None:
            # A transformer takes images of one size, whatever its published weights took.
            size = getattr(net, "image_size", config["input_size"][-1])
            net.data_config = config | {"input_size": (3, size, size)}  # type: ignore[assignment]
        return net

    return build


def _trained_on(models: Any, network: str) -> dict[str, Any] | None:
    """The images that torchvision's weights of a network were trained on; nothing is fetched."""
    try:
        form = models.get_model_weights(network).DEFAULT.transforms()
        size = form.crop_size[0]
        return {"input_size": (3, size, size), "mean": tuple(form.mean), "std": tuple(form.std)}
    except (AttributeError, ValueError):  # none of one's own network, no crop where boxes are found
        return None


LIBRARIES: dict[str, Callable[[str], Callable[..., nn.Module]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}


def _needed(module: str) -> Any:
    """A module of a library, or an error that says how to get it."""
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # a build that does not fit that of torch fails in many ways
        raise SettingError(
            f"networks of {library} need it, and it cannot be imported here "
            f"({type(error).__name__}: {error}). Install it, in the build that fits your torch, "
            f"with: {install_command(library)}"
        ) from error


# Files of weights.


def read_weights(file: str | os.PathLike[str], names: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors in a file of weights, by name; no code in it is ever run.

    - `names`: those of the network's tensors. What stands before all names of the file, as in
      `backbone.conv1.weight`, is left out where the network's names have it not.
    """
    path = Path(file).expanduser()
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            with reading(path):  # no pipe, for whose other end it would wait
                found: Any = load_file(path)
        else:
            with reading(path):
                found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise SettingError(f"there is no file of weights {path}.") from None
    except pickle.UnpicklingError as error:  # torch's own text tells how to run the code in it
        raise SettingError(
            f"{path} cannot be read as weights: it is damaged, or holds objects of Python beside "
            f"tensors, as of torch.save(net). {AS_SAVED}"
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        cause = (str(error).splitlines() or ["it ends too early"])[0][:200]
        raise SettingError(f"{path} cannot be read as weights ({cause}). {AS_SAVED}") from error
    except Exception as error:  # safetensors has an error of its own, below no other
        raise SettingError(f"{path} cannot be read as weights: {error}.") from error
    for key in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise SettingError(f"{path} holds no tensors by name.")
    tensors = {str(n): t for n, t in found.items() if isinstance(t, Tensor)}
    for name, tensor in tensors.items():
        if reason := _unfit(tensor):
            raise SettingError(f"{path}: {name!r} {reason}")
    return _without_prefix(tensors, names)


def _unfit(tensor: Tensor) -> str | None:
    """Why a tensor of a file cannot be weights of a network, and what to do; None where it can."""
    if tensor.is_quantized:
        return "is quantized; save tensor.dequantize()."
    if tensor.layout != torch.strided:
        return "is sparse; save tensor.to_dense()."
    if tensor.is_meta:
        return "is on the meta device and has no values; save the network with its weights loaded."
    if tensor.is_complex() or tensor.dtype == torch.float64:
        return (
            f"is of type {tensor.dtype}, and weights are kept in float32; convert the network "
            "first: net.float()."
        )
    return None


def _without_prefix(tensors: dict[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Tensors by the network's names: `module.` of several processes, `model.` of a trainer, …"""
    parts = {n.partition(".")[0] for n in tensors}
    first = f"{next(iter(parts))}." if len(parts) == 1 else ""
    short = {n.removeprefix(first): t for n, t in tensors.items()}
    fits = any(n in names for n in short) and not any(n in names for n in tensors)
    return short if first and "" not in short and (first == "module." or fits) else tensors


def fill_(
    network: nn.Module,
    file: str | os.PathLike[str],
    *,
    head: Collection[str] = (),
    needs_head: bool = True,
) -> None:
    """Put the weights of a file into a network: all but those of a head of another width.

    - `head`: the names of the tensors whose first dimension counts the classes.
    - `needs_head`: whether the file must have these.
    """
    own = network.state_dict()
    tensors = read_weights(file, own)
    needed = (n for n in own if needs_head or n not in head)
    lacking = [n for n in needed if n not in tensors and not n.endswith("num_batches_tracked")]
    strange = [n for n in tensors if n not in own and not n.endswith("num_batches_tracked")]
    both = [n for n in tensors if n in own]
    other = [n for n in both if own[n].shape != tensors[n].shape]
    widths = {n for n in other if n in head and own[n].shape[1:] == tensors[n].shape[1:]}
    kinds = (
        ("only in the network", lacking),
        ("only in the file", strange),
        ("of other shapes", [n for n in other if n not in widths]),
        ("of other types", [n for n in both if _is_float(own[n]) != _is_float(tensors[n])]),
    )
    parts = [
        f"  {what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for what, names in kinds
        if names
    ]
    if parts:
        raise SettingError(
            f"the weights in {file} are not those of the network:\n" + "\n".join(parts)
        )
    fitting = {n: t for n, t in tensors.items() if n not in widths}
    network.load_state_dict(fitting, strict=False)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
