"""The commands in the documentation, run one after the other in an empty folder."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from run_helpers import SMALL
from tinysubnets.cli import main

Image = pytest.importorskip("PIL.Image")
DOCS = Path(__file__).parent.parent / "docs"
# These need data sets of the Hub; that they parse is tested elsewhere.
ELSEWHERE = {"best/permuted-mnist", "paper/split-cifar100"}
RECIPE = """
[tasks.birds]
data = "photos/birds"
[tasks.leaves]
data = "leaves.npz"
[data]
image_size = 8
channels = 1
[network]
name = "mlp"
in_features = 64
[training]
epochs = 1
"""


# What the page says of a pretrained network holds for any: this one is built in a moment.
NETWORKS = """
import torch
from torch import nn

def lite0():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten())
    net.add_module("fc", nn.Linear(64, 10))
    net.data_config = {"input_size": (3, 12, 12), "mean": (0.498,) * 3, "std": (0.502,) * 3}
    return net
"""


def commands(page: str) -> list[list[str]]:
    """The words of each `tsn` command on a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.S))
    lines = [line.removeprefix("$ ") for line in blocks.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("tsn ")]


def shortened(words: list[str]) -> list[str]:
    """The same command with little data and few epochs, where it learns the bundled digits."""
    if words[0] == "compare":
        words = [*words, "--seeds", "1"]
    elif words[0] == "search":
        words = [*words, "--trials", "2", "--seeds", "100"]
    elif words[0] not in ("run", "demo") or any(w.endswith(".toml") for w in words[1:2]):
        return words
    small = [s for s in SMALL if "split-digits" not in words or "hidden" not in s]
    return [*words, "--device", "cpu", *(part for s in small for part in ("--set", s))]


def prepare(folder: Path) -> None:
    """The files that the pages speak of: pictures, arrays and a recipe."""
    rng = np.random.default_rng(0)
    places = ["birds/wren", "birds/crow", "digits/nought", "digits/one"]
    places += [f"{kind}/{side}" for kind in ("leaves", "mushrooms", "snails") for side in "ab"]
    for kind, place in enumerate(places):
        (folder / "photos" / place).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 128, (8, 8), dtype=np.uint8)
            pixels[:, :4] += np.uint8(127 * (kind % 2))  # something to learn
            Image.fromarray(pixels).save(folder / "photos" / place / f"{number}.png")
    images = rng.integers(0, 256, (24, 1, 8, 8), dtype=np.uint8)
    np.savez(folder / "leaves.npz", inputs=images, labels=np.arange(24) % 2)
    np.savez(folder / "more.npz", inputs=images[:3])
    Image.fromarray(images[0, 0]).save(folder / "photo.png")
    Image.fromarray(images[0, 0]).save(folder / "photo.jpg")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")
    page = (DOCS / "pretrained.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    (folder / "garden.toml").write_text(recipe, encoding="utf-8")
    (folder / "my_networks.py").write_text(NETWORKS, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["index.md", "commands.md", "getting-started.md", "own-data.md", "pretrained.md"]
)
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "my_networks", None)  # to be what it was before, afterwards
    del sys.modules["my_networks"]
    prepare(tmp_path)
    found = [words for words in commands(page) if not ELSEWHERE & set(words)]
    assert found
    for words in found:
        assert main(shortened(words)) == 0, f"tsn {shlex.join(words)}"
