"""A network that stands still: runs of it cannot be over before a test has done what it wants to.

A run names it as `held_network:build`; the environment says how long it stands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from tinysubnets.networks.mlp import mlp


class Gate(nn.Module):
    """Passes its inputs on; not from when the file $HELD_FROM is there, while $HELD_BY is."""

    def forward(self, inputs: Tensor) -> Tensor:
        begin, hold = (os.environ.get(name, "") for name in ("HELD_FROM", "HELD_BY"))
        while os.path.exists(begin) and os.path.exists(hold):
            time.sleep(0.01)
        return inputs


def build(classes: int = 10, in_features: int = 64, hidden: Sequence[int] = (20,)) -> nn.Module:
    """A fully connected network behind a gate."""
    network = mlp(classes, in_features, hidden)
    network.flatten = nn.Sequential(Gate(), nn.Flatten())  # its first layer
    return network


def held(begin: Path, hold: Path) -> dict[str, str]:
    """The environment of a process whose network stands still from one file on, until another goes.

    The second one is made here; the test removes it.
    """
    hold.touch()
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"HELD_FROM": str(begin), "HELD_BY": str(hold), "PYTHONPATH": path}
