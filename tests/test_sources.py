"""Data as people have them: data sets, loaders, pictures and folders; channels in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from nets import data, learner
from tinysubnets import networks
from tinysubnets.baselines.joint import Naive
from tinysubnets.errors import DataError, FewSamplesWarning, TaskError
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.task import Task

Image = pytest.importorskip("PIL.Image")
NAMES = ["zebra", "ant", "cow"]


class Photos(Dataset):
    """A data set in torchvision's style: pictures of Pillow, `targets` and `classes`."""

    def __init__(self, count: int = 30, transform: Any = None, target_transform: Any = None):
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (count, 9, 8, 3), dtype=np.uint8)
        self.targets = [i % 3 for i in range(count)]
        self.classes = list(NAMES)
        self.transform, self.target_transform, self.num_read = transform, target_transform, 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.num_read += 1
        picture, label = Image.fromarray(self.pixels[index]), self.targets[index]
        if self.transform is not None:
            picture = self.transform(picture)
        return picture, label if self.target_transform is None else self.target_transform(label)


class Endless(IterableDataset):
    """Items of a data set that has no length."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return (self.dataset[i] for i in range(len(self.dataset)))


def test_pictures_and_class_names_of_a_data_set_are_taken() -> None:
    photos = Photos()
    made = Task.from_datasets("zoo", photos, valid=0.2, test=Subset(photos, [1, 2, 4]))
    assert made.classes == ("ant", "cow", "zebra")
    assert made.train.inputs().shape == (24, 3, 9, 8) and made.train.inputs().dtype == torch.uint8
    assert made.train.index is not None
    place = int(made.train.index[0])
    first = made.train.inputs(slice(0, 1))[0].numpy()
    assert np.array_equal(first, photos.pixels[place].transpose(2, 0, 1))
    assert made.classes[made.train.labels[0]] == NAMES[photos.targets[place]]
    assert made.test is not None
    assert [made.classes[i] for i in made.test.labels] == ["ant", "cow", "ant"]
    numbers = Task.from_datasets("zoo", photos, classes=None)
    assert numbers.classes == (0, 1, 2)
    german = Task.from_datasets("zoo", photos, classes=["Zebra", "Ameise", "Kuh"])
    assert german.classes == ("Ameise", "Kuh", "Zebra")
    with pytest.raises(TaskError, match="task 'zoo': a label is 2, but there are names of 2"):
        Task.from_datasets("zoo", photos, classes=["a", "b"])


def test_labels_are_read_only_where_no_attribute_has_them() -> None:
    photos = Photos()
    Task.from_datasets("zoo", ConcatDataset([photos, Subset(photos, range(6))]), normalization=None)
    assert photos.num_read < 5
    changed = Photos(target_transform=lambda label: 10 + label % 2)
    assert Task.from_datasets("zoo", changed).classes == (10, 11)  # and no names any more
    changed.target_transform, changed.transforms = None, lambda x, y: (x, y)  # type: ignore
    assert Task.from_datasets("zoo", changed).classes == (0, 1, 2)


def columns(batch: list[Any]) -> tuple[Any, ...]:
    """A batch as a tuple of inputs and one of labels."""
    return tuple(zip(*batch, strict=True))


LOADERS: dict[str, Any] = {
    "in order": lambda d: DataLoader(d, batch_size=7),
    "shuffled": lambda d: DataLoader(d, batch_size=7, shuffle=True),
    "without a length": lambda d: DataLoader(Endless(d), batch_size=7),
    "own batches": lambda d: DataLoader(d, batch_size=7, collate_fn=columns),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_stands_for_its_data(kind: str) -> None:
    x, y = data()
    loader = LOADERS[kind](TensorDataset(torch.from_numpy(x), torch.from_numpy(y)))
    made = Task.from_datasets("a", loader, test=loader)
    wanted = Task.from_arrays("a", x, y, test=(x, y))
    assert made.classes == wanted.classes and made.normalization == wanted.normalization
    assert torch.equal(made.train.inputs(), wanted.train.inputs())
    assert made.test is not None and torch.equal(made.test.inputs(), torch.from_numpy(x))
    learn = learner(training={"epochs": 2})
    learn.learn(made)
    found = learn.evaluate("a", loader)
    right = learn.predict("a", x) == y
    assert found.num_samples == len(x) and found.accuracy == pytest.approx(right.mean())
    if kind == "shuffled":
        with pytest.raises(TaskError, match="shuffles"):
            learn.predict("a", loader)
    else:
        assert np.array_equal(learn.predict("a", loader), learn.predict("a", x))


def test_a_loader_that_chooses_its_samples_is_read_once() -> None:
    x, y = data()
    whole = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    some = DataLoader(whole, batch_size=5, sampler=SubsetRandomSampler(range(20)))
    made = Task.from_datasets("a", some)
    assert len(made.train) + len(made.valid) == 20
    weights = WeightedRandomSampler([1.0] * len(x), 33)
    drawn = Task.from_datasets("a", DataLoader(whole, batch_size=5, sampler=weights))
    assert len(drawn.train) + len(drawn.valid) == 33
    with pytest.raises(TaskError, match="no batch"):
        Task.from_datasets("a", DataLoader(Endless([])))


def test_items_that_are_no_pairs_are_explained() -> None:
    class Rows(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return {"image": 1, "label": 2}

    with pytest.raises(TaskError, match="a dict with image, label per item; items are"):
        Task.from_datasets("a", Rows())
    with pytest.raises(TaskError, match="gave a str as input 0"):
        Task.from_datasets("a", Photos(transform=lambda picture: "no picture"))


def test_predictions_of_pictures_lists_and_data_sets() -> None:
    from torch import nn

    photos = Photos()
    net = nn.Sequential(nn.Flatten(), nn.Linear(216, 8), nn.ReLU())
    net.add_module("fc", nn.Linear(8, 3))
    learn = learner(net, training={"epochs": 1})
    learn.learn(Task.from_datasets("zoo", photos))
    pixels = photos.pixels.transpose(0, 3, 1, 2)
    wanted = learn.predict("zoo", pixels)
    pictures = [Image.fromarray(p) for p in photos.pixels]
    same: list[Any] = [
        pictures,
        [torch.from_numpy(p.copy()) for p in pixels],
        list(pixels),
        photos,  # of (input, label) pairs
        TensorDataset(torch.from_numpy(pixels.copy())),
        DataLoader(TensorDataset(torch.from_numpy(pixels.copy())), batch_size=4),
    ]
    for inputs in same:
        assert np.array_equal(learn.predict("zoo", inputs), wanted)
    assert learn.predict("zoo", pictures[3]).tolist() == [wanted[3]]
    shares = learn.predict_proba("zoo", pictures)
    assert shares.shape == (30, 3) and np.allclose(shares.sum(1), 1)
    classes = np.array(learn.store.subnet("zoo").classes)
    assert np.array_equal(classes[shares.argmax(1)], wanted)
    larger = [p.resize((24, 27)) for p in pictures]  # brought to the size that was learned
    assert learn.predict("zoo", [pictures[0], *larger[1:]]).shape == (30,)
    with pytest.raises(TaskError, match=r"several shapes, \(3, 5, 5\), \(3, 9, 8\)"):
        learn.predict("zoo", [*pixels, pixels[0][:, :5, :5]])
    with pytest.raises(TaskError, match=r"no array of equal rows"):
        learn.predict("zoo", [[1.0], [1.0, 2.0]])
    gray = [p.convert("L") for p in pictures]
    assert np.array_equal(
        learn.predict("zoo", gray), learn.predict("zoo", [p.convert("RGB") for p in gray])
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "refused"),
    [
        ((28, 28, 1), np.uint8, True),
        ((32, 24, 3), np.uint8, True),
        ((32, 32, 4), np.float32, True),
        ((32, 24, 3), np.float32, False),  # numbers of any meaning
        ((3, 32, 32), np.uint8, False),
        ((1, 28, 28), np.float32, False),
        ((64, 4, 4), np.float32, False),  # features of a network
        ((3, 3, 3), np.uint8, False),
    ],
)
def test_images_with_their_channels_last_are_refused(
    shape: tuple[int, ...], dtype: Any, refused: bool
) -> None:
    x, y = np.zeros((6, *shape), dtype), np.arange(6) % 2
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for make in (
        lambda: Task.from_arrays("a", x, y, valid=0.3),
        lambda: Task.from_datasets("a", dataset, valid=0.3),
    ):
        if refused:
            wanted = (shape[2], *shape[:2])
            with pytest.raises(TaskError, match="channels last") as caught:
                make()
            assert str(wanted) in str(caught.value) and "(0, 3, 1, 2)" in str(caught.value)
        else:
            assert make().train.inputs().shape[1:] == shape


def write(folder: Path, *classes: str, sizes: tuple[int, int] = (8, 8), count: int = 10) -> None:
    rng = np.random.default_rng(len(str(folder)))
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (*sizes, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def test_a_task_is_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    plain = tmp_path / "plain"
    write(plain, "cat", "dog", sizes=(12, 10))
    made = Task.from_folder("pets", plain, size=8)
    assert made.classes == ("cat", "dog") and made.test is None
    assert made.train.inputs().shape == (18, 3, 8, 8) and len(made.valid) == 2
    gray = Task.from_folder("pets", str(plain), mode="L", valid=0.2)
    assert gray.train.inputs().shape == (16, 1, 12, 10)
    write(plain / "cat" / "more", ".", sizes=(9, 9), count=1)
    with pytest.raises(DataError, match=r"9x9 pixels, not 10x12; .* data.image_size in a recipe"):
        Task.from_folder("pets", plain)

    parts = tmp_path / "parts"
    write(parts / "train", "cat", "dog")
    write(parts / "val", "dog", count=3)
    only = Task.from_folder("pets", parts)  # one held-out folder is the test data
    assert only.test is not None and len(only.test) == 3 and len(only.valid) == 2
    write(parts / "test", "cat", "dog", count=4)
    made = Task.from_folder("pets", parts)
    assert made.test is not None
    assert (len(made.train), len(made.valid), len(made.test)) == (20, 3, 8)
    assert [made.classes[i] for i in made.valid.labels] == ["dog"] * 3
    write(parts / "test", "emu", count=1)
    with pytest.raises(TaskError, match=r"test labels \['emu'\] do not occur in training"):
        Task.from_folder("pets", parts)


def test_few_images_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "few", "cat", "dog", count=8)
    few = Task.from_folder("pets", tmp_path / "few")  # nothing is learned, and no warning

    def learned(**settings: Any) -> None:
        net = networks.build("mlp", in_features=192, hidden=(8,))
        TinySubNets(Architecture(net), device="cpu", epochs=1, **settings).learn(few)

    with pytest.warns(
        FewSamplesWarning,
        match=r'14 training and 2 .* worth 50 points .*TinySubNets\(…, kept_epoch="auto", min_',
    ) as caught:
        learned()
    assert caught[0].filename == __file__
    with pytest.warns(FewSamplesWarning, match=r"prune\. Leave post-pruning out: .*, min_valid="):
        learned(kept_epoch="auto")
    learned(kept_epoch="auto", min_valid=60)  # the advice is followed: an error if it warned
    naive = Naive(Architecture(networks.build("mlp", in_features=192)), device="cpu", epochs=1)
    with pytest.warns(FewSamplesWarning, match=r'Naive\(…, kept_epoch="auto"\)') as caught:
        naive.learn(few)
    assert caught[0].filename == __file__
    write(tmp_path / "many" / "train", "cat", "dog", count=2)
    write(tmp_path / "many" / "val", "cat", "dog", count=30)
    write(tmp_path / "many" / "test", "cat", "dog", count=1)
    assert len(Task.from_folder("pets", tmp_path / "many").valid) == 60  # and no warning
