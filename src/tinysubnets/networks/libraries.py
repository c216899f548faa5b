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

NESTED = ("state_dict", "model_state_dict", "model", "net")  # where training scripts put weights


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


def read_weights(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors in a file of weights, by name; no code in it is ever run."""
    path = Path(file).expanduser()
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise SettingError(f"there is no file of weights {path}.") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise SettingError(
            f"{path} cannot be read as weights ({str(error).splitlines()[0][:200]}). Give a "
            ".safetensors file, or what torch.save(net.state_dict(), …) writes."
        ) from error
    except Exception as error:  # safetensors has an error of its own, below no other
        raise SettingError(f"{path} cannot be read as weights: {error}.") from error
    for key in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise SettingError(f"{path} holds no tensors by name.")
    tensors = {str(n): t for n, t in found.items() if isinstance(t, Tensor)}
    if tensors and all(n.startswith("module.") for n in tensors):  # of several processes
        tensors = {n.removeprefix("module."): t for n, t in tensors.items()}
    return tensors


def fill_(
    network: nn.Module, file: str | os.PathLike[str], *, optional: Collection[str] = ()
) -> None:
    """Put the weights of a file into a network: all but those of a head of another width.

    - `optional`: the names of tensors that the file need not have.
    """
    tensors = read_weights(file)
    own = network.state_dict()
    needed = (n for n in own if n not in optional and not n.endswith("num_batches_tracked"))
    lacking = [n for n in needed if n not in tensors]
    strange = [n for n in tensors if n not in own and not n.endswith("num_batches_tracked")]
    other = [n for n, t in tensors.items() if n in own and own[n].shape != t.shape]
    widths = {n for n in other if own[n].ndim and own[n].shape[1:] == tensors[n].shape[1:]}
    wrong = [n for n in other if n not in widths]
    # A head for other classes: the last matrix, and its bias.
    if lacking or strange or wrong or len(widths) > 2:
        parts = [
            f"  {what}: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            for what, names in (
                ("only in the network", lacking),
                ("only in the file", strange),
                ("of other shapes", wrong or sorted(widths)),
            )
            if names
        ]
        raise SettingError(
            f"the weights in {file} are not those of the network:\n" + "\n".join(parts)
        )
    fitting = {n: t for n, t in tensors.items() if n not in widths}
    network.load_state_dict(fitting, strict=False)
