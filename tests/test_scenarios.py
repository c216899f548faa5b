"""Scenarios: lazy tasks, from the seed alone, with disjoint data and the classes they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_files import encode, mnist_like, pixels, write_parquet
from tinysubnets import scenarios
from tinysubnets.datasets import catalog, loaders
from tinysubnets.errors import DataError, SettingError, TaskError
from tinysubnets.scenarios import sets
from tinysubnets.scenarios.settings import DataSettings
from tinysubnets.tasks.task import Split, Task


def content(split: Split) -> set[bytes]:
    return {bytes(x.numpy().tobytes()) for x in split.inputs()}


def same(one: Task, two: Task) -> bool:
    return (
        one.classes == two.classes
        and torch.equal(one.train.inputs(), two.train.inputs())
        and torch.equal(one.train.labels, two.train.labels)
        and torch.equal(one.valid.inputs(), two.valid.inputs())
    )


def test_permuted_digits() -> None:
    made = scenarios.build("permuted-digits", seed=1)
    assert len(made.names) == 5 == len(set(made.names))
    first, second = made.task(0), made.task(1)
    assert (first.num_classes, second.num_classes) == (10, 10)
    assert first.test is not None and second.test is not None
    assert (len(first.train) + len(first.valid), len(first.test)) == (1438, 359)
    order = torch.from_numpy(made.permutation(1))
    assert not torch.equal(order, torch.arange(64))
    moved = first.train.inputs().flatten(1)[:, order]
    assert torch.equal(moved, second.train.inputs().flatten(1))
    assert torch.equal(first.train.labels, second.train.labels)


def test_permuted_images_are_read_in_every_way() -> None:
    made = scenarios.build("permuted-digits", seed=1)
    source = made.task(1).valid.source
    whole = source[:]
    for where in (slice(0, 0), np.zeros(len(whole), bool), 3, slice(2, 5), np.array([4, 1])):
        assert np.array_equal(source[where], whole[where])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_permuted_images_are_the_same_on_every_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    made = scenarios.build("permuted-digits", seed=1)
    for index in (0, 1, 1, 2):
        split = made.task(index).valid
        found = split.on(torch.device(device))
        assert found.device.type == device and torch.equal(found.cpu(), split.inputs())


def test_digits_have_the_pixels_of_pictures() -> None:
    for split in ("train", "test"):
        inputs = sets.digits(split).inputs
        assert inputs.dtype == np.uint8 and (inputs.min(), inputs.max()) == (0, 255)
        assert len(np.unique(inputs)) == 17  # bundled as 0 to 16


@pytest.mark.parametrize("name", ["permuted-digits", "split-digits"])
def test_training_validation_and_test_data_never_overlap(name: str) -> None:
    made = scenarios.build(name, seed=2)
    for index in range(len(made.names)):
        task = made.task(index)
        assert task.test is not None
        parts = [content(s) for s in (task.train, task.valid, task.test)]
        assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_the_test_part_of_the_digits_is_the_same_for_all_seeds() -> None:
    one, two = (scenarios.build("permuted-digits", seed=s).task(0) for s in (0, 1))
    assert one.test is not None and two.test is not None
    assert content(one.test) == content(two.test)
    assert content(one.train) != content(two.train)


@pytest.mark.parametrize("name", ["permuted-digits", "split-digits"])
def test_the_seed_alone_decides(name: str) -> None:
    made, again = (scenarios.build(name, seed=4) for _ in range(2))
    torch.manual_seed(99)
    again.task(3)  # tasks do not depend on the order in which they are made
    assert same(made.task(1), again.task(1))
    assert not same(made.task(1), scenarios.build(name, seed=5).task(1))


def test_permutations_are_portable() -> None:
    made = scenarios.build("permuted-digits", seed=0)
    assert made.permutation(1)[:8].tolist() == [1, 44, 12, 60, 49, 48, 34, 25]


def test_split_digits_covers_all_classes_once() -> None:
    made = scenarios.build("split-digits", seed=0)
    classes = [c for i in range(5) for c in made.task(i).classes]
    assert sorted(classes) == list("0123456789")
    natural = scenarios.build("split-digits", {"class_order": "natural"}, seed=0)
    assert natural.task(0).classes == ("0", "1")
    task = made.task(2)
    # The images of a class are those of the data set's class of that name.
    source = sets.digits("train")
    whole = source.inputs[source.labels == int(task.classes[1])]
    mine = task.train.inputs()[task.train.labels == 1]
    assert {x.tobytes() for x in mine.numpy()} <= {x.tobytes() for x in whole}


def test_superclasses_are_tasks(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(
            tmp_path / f"uoft-cs/cifar100/cifar100/{split}-00000-of-00001.parquet",
            [encode(image, "PNG") for image in pixels(300, (32, 32, 3))],
            {"fine_label": [i % 100 for i in range(300)]},
            image="img",
        )
    given = {"class_order": "superclasses"}
    made = scenarios.build("split-cifar100", given, seed=3, root=tmp_path, cache=tmp_path / "cache")
    assert len(made.names) == 20 and made.names != tuple(sorted(made.names))
    trees = made.task(made.names.index("trees"))
    assert trees.classes == ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree")
    classes = [c for i in range(20) for c in made.task(i).classes]
    assert len(classes) == len(set(classes)) == 100
    with pytest.raises(SettingError, match="digits has none; cifar100 has them"):
        _ = scenarios.build("split-digits", given).names


def test_other_splits_and_their_limits() -> None:
    made = scenarios.build("split-digits", {"classes_per_task": 5})
    assert [made.task(i).num_classes for i in range(len(made.names))] == [5, 5]
    assert len(scenarios.build("split-digits", {"num_tasks": 2}).names) == 2
    with pytest.raises(SettingError, match="enough for 5 tasks"):
        _ = scenarios.build("split-digits", {"num_tasks": 6}).names
    assert len(scenarios.build("permuted-digits", {"num_tasks": 12}).names) == 12


def test_limits_are_even_over_classes() -> None:
    limits = {"train_limit": 40, "test_limit": 20}
    task = scenarios.build("permuted-digits", limits, seed=0).task(0)
    assert task.test is not None
    assert len(task.train) + len(task.valid) == 40
    counts = torch.bincount(torch.cat([task.train.labels, task.valid.labels]))
    assert counts.tolist() == [4] * 10
    assert torch.bincount(task.test.labels).tolist() == [2] * 10


@pytest.mark.parametrize(
    "values", [{"valid": 0.0}, {"valid": 1.0}, {"train_limit": 0}, {"num_tasks": 0}, {"tasks": 1}]
)
def test_settings_are_checked(values: dict) -> None:
    with pytest.raises(SettingError):
        scenarios.settings("permuted-digits", values)


def test_permuted_mnist_from_parquet(tmp_path: Path) -> None:
    mnist_like(tmp_path, 40)
    mnist_like(tmp_path, 20, 1, "test")
    made = scenarios.build("permuted-mnist", seed=0, root=tmp_path, cache=tmp_path / "cache")
    assert len(made.names) == 10
    task = made.task(9)
    assert task.test is not None
    assert task.train.inputs().shape[1:] == (1, 28, 28)
    assert (task.num_classes, len(task.test)) == (10, 20)


def imagenet_like(root: Path, count: int, classes: int, split: str) -> None:
    """A little `clane9/imagenet-100`: JPEG of different sizes."""
    write_parquet(
        root / f"clane9/imagenet-100/data/{split}-00000-of-00001.parquet",
        [encode(pixels(1, (240 + 7 * (i % 3), 260, 3), i)[0], "JPEG") for i in range(count)],
        {"label": [i % classes for i in range(count)]},
    )


def test_imagenet100_stays_on_disk(tmp_path: Path) -> None:
    imagenet_like(tmp_path, 40, 4, "train")
    imagenet_like(tmp_path, 8, 4, "validation")
    values = {"classes_per_task": 2}
    made = scenarios.build("imagenet100", values, seed=0, root=tmp_path, cache=tmp_path / "cache")
    assert len(made.names) == 2
    task = made.task(1)
    assert isinstance(task.train.source, np.memmap)
    assert task.train.inputs(slice(0, 2)).shape == (2, 3, 224, 224)
    assert task.test is not None and len(task.test) == 4
    assert len(task.normalization.mean) == 3


def test_sequences_bring_images_to_one_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (name, shape) in enumerate({"grey": (20, 24), "colour": (32, 32, 3)}.items()):
        for split, count in (("train", 40), ("test", 10)):
            write_parquet(
                tmp_path / f"owner/{name}/data/{split}-00000-of-00001.parquet",
                [encode(image) for image in pixels(count, shape, number)],
                {"label": [i % (3 + number) for i in range(count)]},
            )
    made = scenarios.build(
        "five-datasets",
        {"datasets": ["owner/grey", "owner/colour"]},
        root=tmp_path,
        cache=tmp_path / "cache",
    )
    assert made.names == ("owner/grey", "owner/colour")
    gray, color = made.task(0), made.task(1)
    assert gray.train.inputs().shape[1:] == color.train.inputs().shape[1:] == (3, 32, 32)
    image = gray.train.inputs(slice(0, 1))[0]
    assert torch.equal(image[0], image[1]) and torch.equal(image[0], image[2])
    assert (gray.num_classes, color.num_classes) == (3, 4)


def own(tasks: dict, **values: object) -> scenarios.Scenario:
    return scenarios.build("own", {"tasks": tasks, **values})


def save_npz(path: Path, count: int = 30, features: int = 5, **more: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    inputs = rng.random((count, features), dtype=np.float32)
    np.savez(path, inputs=inputs, labels=np.arange(count) % 3, **more)
    return str(path)


def test_own_tasks_from_npz(tmp_path: Path) -> None:
    test = {"test_inputs": np.ones((6, 5), np.float32), "test_labels": np.arange(6) % 3}
    sources = {
        "with": {"data": save_npz(tmp_path / "a.npz", **test)},
        "without": {"data": save_npz(tmp_path / "b.npz"), "classes": ["2", "0"]},
    }
    made = own(sources)
    assert made.names == ("with", "without")
    one, two = made.task(0), made.task(1)
    assert one.test is not None and len(one.test) == 6
    assert two.test is None
    assert two.classes == ("2", "0")
    assert len(two.train) + len(two.valid) == 20


def test_own_tasks_from_folders_of_images(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / split / label
            folder.mkdir(parents=True)
            for i, image in enumerate(pixels(6, (10, 10, 3), len(split) + len(label))):
                (folder / f"{i}.png").write_bytes(encode(image))
    made = own({"pets": {"data": str(tmp_path / "pets")}}, image_size=8)
    task = made.task(0)
    assert task.classes == ("cat", "dog")
    assert task.train.inputs().shape[1:] == (3, 8, 8)
    assert task.test is not None and len(task.test) == 12


def test_own_arrays_of_images_get_the_common_size(tmp_path: Path) -> None:
    images = np.ones((20, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", inputs=images, labels=np.arange(20) % 2 + 5)
    sources = {"a": {"data": str(tmp_path / "a.npz")}}
    task = own(sources, image_size=10).task(0)
    assert task.classes == ("5", "6") and task.train.inputs().shape[1:] == (1, 10, 10)
    with pytest.raises(DataError, match="do not fit into 1x6x6"):
        own(sources, image_size=6).task(0)


def test_own_tasks_that_cannot_be_learned(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at least one table"):
        own({})
    with pytest.raises(SettingError, match=r"tasks\.a does not say where"):
        own({"a": {"classes": ["x"]}})
    with pytest.raises(SettingError, match=r"tasks\.a\.dat"):
        own({"a": {"data": "x", "dat": "y"}})
    with pytest.raises(SettingError, match="unknown class"):
        own({"a": {"data": save_npz(tmp_path / "a.npz"), "classes": ["7"]}}).task(0)
    sources = {
        "a": {"data": str(tmp_path / "a.npz")},
        "b": {"data": save_npz(tmp_path / "b.npz", features=7)},
    }
    made = own(sources)
    made.task(0)
    with pytest.raises(TaskError, match="one network takes one shape"):
        made.task(1)


def test_missing_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="--data"):
        scenarios.build("permuted-mnist", root=tmp_path, cache=tmp_path).task(0)


def test_a_folder_that_is_not_there_is_said_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        own({"a": {"data": "photos/nope"}}).task(0)
    said = str(caught.value)
    assert said.startswith("tasks.a: photos/nope is not a folder. ") and "\n" not in said
    assert "https://huggingface.co/datasets/photos/nope" in said and "parquet" not in said
    with pytest.raises(DataError, match="data set ylecun/mnist is missing"):
        own({"a": {"data": "ylecun/mnist"}}).task(0)  # which is known to be one of the Hub
    (tmp_path / "photos" / "nope" / "data").mkdir(parents=True)
    (tmp_path / "photos/nope/data/train-00000-of-00002.parquet").write_bytes(b"")
    monkeypatch.chdir("/")
    with pytest.raises(DataError, match="data set photos/nope is missing"):
        scenarios.build("own", {"tasks": {"a": {"data": "photos/nope"}}}, root=tmp_path).task(0)


def test_classes_without_training_data_are_named() -> None:
    source = loaders.DecodedSet(
        np.zeros((6, 2), np.float32), np.array([0, 0, 0, 1, 1, 1]), ("a", "b", "c")
    )
    with pytest.raises(TaskError, match="classes c"):
        sets.Sets(DataSettings()).task("t", source, None, [0, 1, 2])


@pytest.mark.parametrize("name", sorted(set(scenarios.SCENARIOS) - {"own"}))
def test_the_table_names_sets_that_exist(name: str) -> None:
    entry = scenarios.entry(name)
    for dataset in entry.datasets:
        assert dataset == "digits" or dataset in catalog.CATALOG
    given = scenarios.settings(name)
    named = getattr(given, "datasets", None) or (given.dataset,)
    assert tuple(named) == entry.datasets


def test_unknown_scenarios_say_the_nearest() -> None:
    with pytest.raises(SettingError, match="Did you mean 'split-digits'"):
        scenarios.build("split-digit")


@pytest.mark.parametrize("name", ["split-digits", "permuted-digits"])
def test_a_normalization_is_fitted_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run looks at all tasks before it learns the first."""
    fitted: list[str] = []
    real = sets.fitted_normalization

    def counted(task: str, *rest: Any) -> Any:
        fitted.append(task)
        return real(task, *rest)

    monkeypatch.setattr(sets, "fitted_normalization", counted)
    made = scenarios.build(name, seed=1)
    first = [made.task(i) for i in range(3)]
    again = [made.task(i) for i in range(3)]
    assert fitted == list(made.names[:3])
    assert [t.normalization for t in again] == [t.normalization for t in first]
    assert len({t.normalization for t in first}) == (3 if name == "split-digits" else 1)
