"""The networks: exact counts of shared weights, shapes, heads of any width, building by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from tinysubnets import networks
from tinysubnets.errors import SettingError

IMAGES = {
    "mlp": (1, 28, 28),
    "alexnet": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "small-resnet": (3, 32, 32),
    "tinynet": (3, 64, 64),
    "vit": (3, 32, 32),
    "small-mlp": (64,),
    "small-cnn": (1, 8, 8),
}


def shared(network: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of two or more dimensions outside the head, without a leading dimension of 1."""
    return {
        name: p
        for name, p in network.named_parameters()
        if p.ndim >= 2 and p.shape[0] > 1 and not name.startswith("fc.")
    }


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("mlp", {"in_features": 784, "hidden": [100, 100]}, 88_400),
        ("alexnet", {}, 6_499_328),
        ("resnet18", {"width": 20, "stem": "3x3"}, 1_090_140),
        ("resnet18", {"width": 64, "stem": "7x7"}, 11_166_912),
        ("tinynet", {}, 2_743_520),
    ],
)
def test_shared_weights_are_those_of_the_paper(name: str, settings: dict, count: int) -> None:
    with torch.device("meta"):
        network = networks.build(name, **settings)
    assert sum(p.numel() for p in shared(network).values()) == count


@pytest.mark.parametrize("name", networks.names())
def test_last_layer_is_a_linear_head_and_any_width_fits(name: str) -> None:
    network = networks.build(name, classes=10).eval()
    assert isinstance(network.fc, nn.Linear)
    x = torch.rand(2, *IMAGES[name])
    assert network(x).shape == (2, 10)
    wide = network.fc.in_features
    other = {"fc.weight": torch.randn(3, wide), "fc.bias": torch.zeros(3)}
    assert functional_call(network, other, (x,)).shape == (2, 3)


@pytest.mark.parametrize("name", networks.names())
def test_every_parameter_gets_a_gradient(name: str) -> None:
    network = networks.build(name, classes=4).train()
    network(torch.rand(4, *IMAGES[name])).square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", ["mlp", "alexnet", "resnet18", "tinynet", "small-cnn"])
def test_norms_leave_the_count_of_shared_weights_alone(name: str, norm: str) -> None:
    with torch.device("meta"):
        plain, normed = networks.build(name), networks.build(name, norm=norm)
    assert {k: p.shape for k, p in shared(plain).items()} == {
        k: p.shape for k, p in shared(normed).items()
    }
    has_norm = any(
        isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm)
        for m in normed.modules()
    )
    assert has_norm == (norm != "none")


def test_biases_exist_only_where_no_norm_follows() -> None:
    for norm in ("batch", "group", "none"):
        network = networks.build("small-cnn", norm=norm)
        assert (network.conv1.bias is None) == (norm != "none")


def test_mlp_takes_images_and_vectors() -> None:
    network = networks.build("mlp")
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(network(x), network(x.flatten(1)))


@pytest.mark.parametrize("stem", ["3x3", "7x7"])
@pytest.mark.parametrize("side", [28, 64])
def test_resnet_takes_images_of_any_size(stem: str, side: int) -> None:
    network = networks.build("resnet18", in_channels=1, width=8, stem=stem).eval()
    assert network(torch.rand(1, 1, side, side)).shape == (1, 10)


@pytest.mark.parametrize(("name", "side"), [("alexnet", 28), ("tinynet", 50), ("vit", 16)])
def test_image_size_is_a_setting(name: str, side: int) -> None:
    network = networks.build(name, image_size=side, in_channels=1).eval()
    assert network(torch.rand(1, 1, side, side)).shape[0] == 1


def test_dropout_scales_the_rates_of_alexnet() -> None:
    def rates(scale: float) -> list[float]:
        network = networks.build("alexnet", dropout=scale)
        return [m.p for m in network.modules() if isinstance(m, nn.Dropout)]

    assert rates(1.0) == [0.2, 0.2, 0.5, 0.5, 0.5]
    assert rates(0.5) == [0.1, 0.1, 0.25, 0.25, 0.25]
    assert rates(0.0) == []
    with pytest.raises(SettingError, match="rates lie in"):
        rates(2.0)


def test_vit_keeps_class_token_and_positions_private() -> None:
    network = networks.build("vit")
    names = set(shared(network))
    assert "class_token" not in names and "position" not in names
    assert "patches.weight" in names and "blocks.0.attention.qkv.weight" in names


def test_vit_gives_the_same_logits_with_and_without_gradients() -> None:
    network = networks.build("vit").eval()
    x = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        without = network(x)
    assert torch.equal(network(x), without)


def test_users_own_function_is_found_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net_xyz.py").write_text(
        "from torch import nn\n"
        "def net(classes, width=3):\n"
        "    n = nn.Sequential(nn.Linear(4, width))\n"
        "    n.add_module('fc', nn.Linear(width, classes))\n"
        "    return n\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert networks.build("own_net_xyz:net", classes=7).fc.out_features == 7
    assert networks.settings("own_net_xyz:net") == ("classes", "width")
    assert str(tmp_path) not in sys.path
    with pytest.raises(SettingError, match="must return"):
        networks.build("own_net_xyz:wrong")
    with pytest.raises(SettingError, match="has no function 'nothing'"):
        networks.build("own_net_xyz:nothing")
    with pytest.raises(SettingError, match="missing a required argument: 'classes'"):
        networks.build("own_net_xyz:net")
    with pytest.raises(SettingError, match="cannot import 'no_such_module_xyz'"):
        networks.build("no_such_module_xyz:net")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("alexnt", {}, "Did you mean 'alexnet'"),
        ("mlp", {"hiden": [3]}, "Did you mean 'hidden'"),
        ("resnet18", {"stem": "5x5"}, "Known: 3x3, 7x7"),
        ("tinynet", {"norm": "layer"}, "Known: batch, group, none"),
        ("vit", {"patch_size": 5}, "choose a divisor"),
        ("vit", {"heads": 5}, "choose a divisor"),
        ("alexnet", {"image_size": 8}, "too small"),
    ],
)
def test_wrong_names_and_settings_are_refused(name: str, settings: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        networks.build(name, **settings)


def test_a_network_that_cannot_be_built_says_where_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_nets.py").write_text('def net(width):\n    raise ValueError("too odd")\n')
    monkeypatch.chdir(tmp_path)
    said = r"\(width=3\): ValueError: too odd \(in .*broken_nets\.py, line 2\)"
    with pytest.raises(SettingError, match=said):
        networks.build("broken_nets:net", width=3)
    with pytest.raises(SettingError, match="'mlp' cannot be built"):
        networks.build("mlp", in_features=10**9, hidden=(10**9,))


def test_names_and_descriptions_need_no_torch() -> None:
    code = (
        "import sys; from tinysubnets import networks as n; "
        "assert all(n.describe(x) for x in n.names()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("strange", [5, None, ["batch"], {"batch": 1}])
def test_names_that_are_no_strings_are_unknown(strange: Any) -> None:
    with pytest.raises(SettingError, match="unknown network"):
        networks.build(strange)
    with pytest.raises(SettingError, match="norm"):
        networks.build("small-resnet", norm=strange)
