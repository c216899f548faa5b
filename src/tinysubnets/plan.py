"""The plan of a run: a recipe, a seed and a machine; what `config.toml` holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinysubnets import networks
from tinysubnets.architecture import Architecture
from tinysubnets.errors import SettingError
from tinysubnets.recipe import Recipe, complete
from tinysubnets.run_folder import FORMAT
from tinysubnets.version import __version__

CHECKPOINT_SECONDS = 30.0
MOST_THREADS = 1024  # with many more than it can start, torch ends the process


@dataclass(frozen=True)
class Plan:
    """What is to be run: a recipe, a seed, and where.

    `threads` None means one for small networks and torch's own choice for others.

    `data` is the local folder of data sets. `checkpoint_seconds` is the least time between two
    checkpoints.
    """

    recipe: Recipe
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    data: str | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise SettingError(
                f"threads = {self.threads} is not allowed; give 1 to {MOST_THREADS:,}."
            )
        if not -(2**63) <= self.seed < 2**63:
            raise SettingError(f"seed = {self.seed} is not allowed; give a number of 64 bits.")
        if not self.checkpoint_seconds >= 0:
            raise SettingError(
                f"checkpoint_seconds = {self.checkpoint_seconds} is not allowed; give 0 or more."
            )

    def as_dict(self) -> dict[str, Any]:
        """The plan as `config.toml` has it: a recipe with a table [run]."""
        run = {
            "format": FORMAT,
            "library": __version__,
            "torch": torch.__version__,
            "recipe": self.recipe.name,
            "seed": self.seed,
            "device": self.device,
            "threads": self.threads,
            "data": self.data,
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        values = self.recipe.as_dict()
        plain = {k: values.pop(k) for k in ("scenario", "method")}
        return plain | {"run": run} | values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """The plan of a `config.toml`."""
        run = values["run"]
        given: dict[str, Any] = {
            k: None if run[k] == "none" else run[k]
            for k in ("seed", "device", "threads", "data", "checkpoint_seconds")
        }
        return cls(complete(run["recipe"], values), **given)


def build_architecture(recipe: Recipe, shape: tuple[int, ...], seed: int) -> Architecture:
    """The recipe's network; "auto" chooses one for the shape of the inputs."""
    settings = {k: v for k, v in recipe.network.items() if k not in ("name", "head")}
    name = str(recipe.network["name"])
    if name == "auto":
        name, settings = _network_for(shape, settings)
    # Forked and seeded: weights of the network matter where learning starts from them.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = networks.build(name, **settings)
    head = str(recipe.network.get("head", "fc"))
    return Architecture(net, head, rebuild={"network": name, "settings": settings})


def _network_for(shape: tuple[int, ...], given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A network for inputs of that shape: convolutions for images, else fully connected."""
    if len(shape) == 4 and shape[2] == shape[3] >= 18:
        return "alexnet", {"in_channels": shape[1], "image_size": shape[2], "hidden": 512} | given
    features = 1
    for size in shape[1:]:
        features *= size
    return "mlp", {"in_features": features, "hidden": [100, 100]} | given


def default_folder(recipe: Recipe, seed: int, base: str | Path = "runs") -> Path:
    """The first unused folder `runs/<recipe>/<method>/seed-<n>`."""
    stem = Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name
    first = Path(base) / stem.replace("/", "-") / recipe.method / f"seed-{seed}"
    path, number = first, 1
    while (path / "config.toml").exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path
