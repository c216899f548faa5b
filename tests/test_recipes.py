"""Recipes: complete, checked, and repeatable from what a run wrote down."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from tinysubnets import config, networks, scenarios
from tinysubnets.errors import SettingError
from tinysubnets.experiments import recipe
from tinysubnets.experiments.recipe import Plan, build_architecture, default_folder

PAPER = ("permuted-mnist", "split-cifar100", "five-datasets", "tiny-imagenet", "imagenet100")


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_is_valid_and_names_what_exists(name: str) -> None:
    found = recipe.load(name)
    assert found.name == name
    assert found.scenario in scenarios.SCENARIOS
    assert found.network["name"] in networks.names()
    again = recipe.complete(name, tomllib.loads(config.to_toml(found.as_dict())))
    assert again == found


def test_every_scenario_has_recipes() -> None:
    named = set(recipe.names())
    assert {f"best/{s}" for s in scenarios.SCENARIOS if s != "own"} <= named
    assert {f"paper/{s}" for s in PAPER} <= named


def test_the_papers_list_of_hyperparameters() -> None:
    rows = {s: recipe.load(f"paper/{s}") for s in PAPER}
    rates = {s: (r.training["lr"], r.training["min_lr"]) for s, r in rows.items()}
    assert rates == {
        "permuted-mnist": (3e-1, 1e-4),
        "split-cifar100": (1e-2, 1e-4),
        "five-datasets": (1e-2, 1e-4),
        "tiny-imagenet": (1e-3, 1e-5),
        "imagenet100": (1e-3, 1e-5),
    }
    assert {s: r.training["batch_size"] for s, r in rows.items()} == {
        "permuted-mnist": 256,
        "split-cifar100": 2048,
        "five-datasets": 256,
        "tiny-imagenet": 256,
        "imagenet100": 32,
    }
    assert [r.training["optimizer"] for r in rows.values()] == ["sgd"] + ["adam"] * 4
    assert [r.learner["density"] for r in rows.values()] == [0.5, 0.55, 0.5, 0.5, 0.5]
    assert [r.learner["bits"] for r in rows.values()] == [4, 4, 4, 5, 5]
    assert [r.learner["memory_samples"] for r in rows.values()] == [50, 50, 50, 15, 50]
    for row in rows.values():
        assert (row.training["epochs"], row.training["codebook_updates_per_epoch"]) == (200, 3)
        pruning = row.pruning
        assert (pruning["iterations"], pruning["step"], pruning["alpha"]) == (50, 0.01, 0.95)
        assert (row.learner["max_banks"], row.learner["scale"]) == (2, "xavier")
        assert not any(row.training["augmentation"][k] for k in ("flip", "shift"))


@pytest.mark.parametrize(
    ("name", "weights", "shape"),
    [
        ("paper/permuted-mnist", 88_400, (1, 1, 28, 28)),
        ("paper/split-cifar100", 6_499_328, (1, 3, 32, 32)),
        ("paper/five-datasets", 1_090_140, (1, 3, 32, 32)),
        ("paper/tiny-imagenet", 2_743_520, (1, 3, 64, 64)),
        ("paper/imagenet100", 11_166_912, (1, 3, 224, 224)),
    ],
)
def test_networks_have_the_papers_sizes(name: str, weights: int, shape: tuple) -> None:
    assert build_architecture(recipe.load(name), shape, 0).num_shared == weights


def test_a_bare_name_means_the_best_recipe() -> None:
    assert recipe.load("split-cifar100") == recipe.load("best/split-cifar100")
    assert recipe.load().name == "best/permuted-digits"


def test_settings_and_method_are_laid_over() -> None:
    found = recipe.load(
        "permuted-digits", method="tsn-wr-wpp", assignments=["training.epochs=5", "tsn.density=0.2"]
    )
    assert found.training["epochs"] == 5
    assert found.learner["density"] == 0.2
    assert found.learner["max_banks"] == 1
    assert found.learner["memory"] == "none"
    assert found.learner["post_pruning"] is False


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("training.epoch=5", "training.epochs"),
        ("trainig.epochs=5", "training"),
        ("epoch=5", "unknown setting 'epoch'"),
        ("density=1.5", "density"),
        ("seed=5", "--seed"),
        ("tsn.densty=0.5", "tsn.density"),
        ("tsn.density=1.5", "density"),
        ("wsn.densty=0.5", "density"),
        ("data.num_task=3", "data.num_tasks"),
        ("data.num_tasks=0", "num_tasks"),
        ("pruning.alpha=many", "pruning.alpha"),
        ("tsn.seed=5", "--seed"),
        ("training=5", "table"),
        ("method=tns", "tsn"),
        ("scenario=permuted-digit", "permuted-digits"),
    ],
)
def test_unknown_keys_are_errors(assignment: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        recipe.load("permuted-digits", assignments=[assignment])


def test_a_setting_needs_no_table_on_the_command_line() -> None:
    given = ["epochs=7", "density=0.5", "iterations=3", "data.num_tasks=2"]
    found = recipe.load("permuted-digits", assignments=given)
    assert (found.training["epochs"], found.pruning["iterations"]) == (7, 3)
    assert (found.learner["density"], found.data["num_tasks"]) == (0.5, 2)
    other = recipe.load("permuted-digits", method="wsn", assignments=["density=0.4"])
    assert other.learner["density"] == 0.4
    named = recipe.load("permuted-digits", assignments=["density=0.4", "method=wsn"])
    assert named.method == "wsn" and named.learner["density"] == 0.4


def test_a_setting_of_a_file_has_its_table(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('scenario = "permuted-digits"\nepochs = 5\n')
    with pytest.raises(SettingError, match=r"There is a setting 'training\.epochs'"):
        recipe.load(str(tmp_path / "mine.toml"))


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(SettingError, match="Did you mean 'permuted-mnist'"):
        recipe.load("permutd-mnist")
    with pytest.raises(SettingError, match="Did you mean 'paper/split-cifar100'"):
        recipe.load("paper/split-cifar10")
    with pytest.raises(SettingError, match=r"nowhere\.toml"):
        recipe.load("nowhere.toml")


def test_broken_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("scenario = ")
    with pytest.raises(SettingError, match=r"mine\.toml is not valid TOML"):
        recipe.load(str(file))
    file.write_text("method = 'tsn'")
    with pytest.raises(SettingError, match="no scenario"):
        recipe.load(str(file))
    file.write_text("tasks = 5")
    with pytest.raises(SettingError, match=r"\[tasks.NAME\]"):
        recipe.load(str(file))


def test_own_tasks_are_found_from_where_the_file_lies(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros((4, 3)), labels=[0, 1, 0, 1])
    file = tmp_path / "mine.toml"
    file.write_text('[tasks.first]\ndata = "a.npz"\n[tasks.second]\ndata = "owner/name"\n')
    found = recipe.load(str(file))
    assert found.scenario == "own"
    assert found.data["tasks"]["first"]["data"] == str(tmp_path / "a.npz")
    assert found.data["tasks"]["second"]["data"] == "owner/name"
    assert recipe.complete("again", tomllib.loads(config.to_toml(found.as_dict()))).data == (
        found.data
    )


def test_a_plan_comes_back_from_its_file() -> None:
    plan = Plan(
        recipe.load("split-digits"), seed=7, device="cpu", threads=2, data="/tmp/x", matrix="last"
    )
    text = config.to_toml(plan.as_dict())
    assert Plan.from_dict(tomllib.loads(text)) == plan


def test_networks_are_chosen_by_shape(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[tasks.a]\ndata = "x"\n')
    found = recipe.load(str(file))
    images = build_architecture(found, (5000, 3, 32, 32), 0)
    vectors = build_architecture(found, (5000, 12), 0)
    assert images.rebuild is not None and images.rebuild["network"] == "alexnet"
    assert vectors.shared[0].shape == (100, 12)


@pytest.mark.parametrize(("side", "convolutions"), [(18, 2), (32, 3), (64, 4), (100, 4), (224, 5)])
def test_few_images_get_a_small_network(side: int, convolutions: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[tasks.a]\ndata = "x"\n')
    made = build_architecture(recipe.load(str(file)), (135, 3, side, side), 0)
    assert made.rebuild is not None and made.rebuild["network"] == "small-cnn"
    assert made.rebuild["settings"]["convolutions"] == convolutions
    assert made.num_shared < 300_000  # whatever the size of the images


def test_ones_own_data_have_settings_that_fit_few_samples(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[tasks.a]\ndata = "x"\n')
    found = recipe.load(str(file))
    assert found.training["kept_epoch"] == "auto" and found.pruning["min_valid"] == 60
    file.write_text('[tasks.a]\ndata = "x"\n[training]\nkept_epoch = "loss"\n')
    assert recipe.load(str(file)).training["kept_epoch"] == "loss"
    for other in ("permuted-digits", "paper/split-cifar100"):
        plain = recipe.load(other)
        assert plain.training["kept_epoch"] == "accuracy" and plain.pruning["min_valid"] == 0
    # A run that another version began is gone on with as it was.
    begun = found.as_dict() | {"run": {}}
    begun["training"] = {k: v for k, v in begun["training"].items() if k != "kept_epoch"}
    assert recipe.complete("mine", begun).training["kept_epoch"] == "accuracy"


def test_default_folders_are_new(tmp_path: Path) -> None:
    found = recipe.load("permuted-digits")
    first = default_folder(found, 3, tmp_path)
    assert first == tmp_path / "best-permuted-digits" / "tsn" / "seed-3"
    first.mkdir(parents=True)
    assert default_folder(found, 3, tmp_path) == first
    (first / "config.toml").touch()
    assert default_folder(found, 3, tmp_path) == first.with_name("seed-3-2")
