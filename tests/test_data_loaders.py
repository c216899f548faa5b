"""Folders of images, .npz arrays, and images brought to a common shape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_files import encode, mnist_like, pixels
from tinysubnets.datasets.images import fit
from tinysubnets.datasets.loaders import load, load_folder, load_npz
from tinysubnets.errors import DataError, SettingError


def image_folder(top: Path, splits: tuple[str, ...] = ("train", "test")) -> np.ndarray:
    """Two classes of two images each per split; returns the images in sorted order."""
    images = pixels(4, (6, 5, 3))
    for split in splits:
        for index, image in enumerate(images):
            file = top / split / ("cat", "dog")[index // 2] / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode(image))
    return images


def test_second_load_reads_the_cache_without_pyarrow(tmp_path: Path) -> None:
    images = mnist_like(tmp_path)
    first = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    code = (
        "import sys; from tinysubnets.datasets.loaders import load; "
        f"d = load('mnist', root={str(tmp_path)!r}, cache={str(tmp_path / 'cache')!r}); "
        "assert not {'pyarrow', 'PIL', 'torch'} & set(sys.modules); "
        "print(d.checksum, d.inputs.sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [first.checksum, str(images.sum(dtype=np.int64))]


def test_replaced_source_is_decoded_again(tmp_path: Path) -> None:
    mnist_like(tmp_path, seed=0)
    first = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    other = mnist_like(tmp_path, seed=1)
    second = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    assert np.array_equal(second.inputs[:, 0], other)
    assert first.checksum != second.checksum


def test_folder_of_images_per_class(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "pets")
    (tmp_path / "pets/train/cat/notes.txt").write_text("not an image")
    (tmp_path / "pets/train/.hidden").mkdir()
    found = load(tmp_path / "pets", "train", cache=tmp_path / "cache")
    assert np.array_equal(found.inputs, images.transpose(0, 3, 1, 2))
    assert list(found.labels) == [0, 0, 1, 1] and found.classes == ("cat", "dog")
    small = load_folder(tmp_path / "pets", "test", size=4, mode="L", cache=tmp_path / "cache")
    assert small.inputs.shape == (4, 1, 4, 4)


def test_folder_without_splits_is_taken_whole(tmp_path: Path) -> None:
    image_folder(tmp_path, splits=("",))
    for split in (None, "train"):
        found = load_folder(tmp_path, split, cache=tmp_path.parent / f"{tmp_path.name}-cache")
        assert len(found.inputs) == 4
    with pytest.raises(DataError, match="no sub-folder test or validation or valid or val"):
        load_folder(tmp_path, "test")


def test_labels_mean_the_same_in_both_splits(tmp_path: Path) -> None:
    image_folder(tmp_path, splits=("train", "val"))
    for file in (tmp_path / "val/cat").iterdir():
        file.unlink()
    (tmp_path / "val/cat").rmdir()
    found = load_folder(tmp_path, "test", cache=tmp_path / "cache")
    assert list(found.labels) == [1, 1] and found.classes == ("cat", "dog")
    image_folder(tmp_path / "val", splits=("x",))
    with pytest.raises(DataError, match=r"classes that .* has not: x"):
        load_folder(tmp_path, "test", cache=tmp_path / "cache")


def test_new_image_in_a_folder_is_seen(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets")
    load_folder(tmp_path / "pets", "train", cache=tmp_path / "cache")
    (tmp_path / "pets/train/cat/9.png").write_bytes(encode(pixels(1, (6, 5, 3), 4)[0]))
    found = load_folder(tmp_path / "pets", "train", cache=tmp_path / "cache")
    assert list(found.labels) == [0, 0, 0, 1, 1]


def test_corrupt_or_uneven_images_of_a_folder_are_named(tmp_path: Path) -> None:
    image_folder(tmp_path / "pets")
    bad = tmp_path / "pets/train/dog/3.png"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:50])
    with pytest.raises(DataError, match=r"dog/3\.png: cannot decode the image"):
        load(tmp_path / "pets", cache=tmp_path / "cache")
    bad.write_bytes(encode(pixels(1, (9, 9, 3))[0]))
    with pytest.raises(DataError, match=r"dog/3\.png: the image is 9x9 pixels, not 5x6; .* size"):
        load(tmp_path / "pets", cache=tmp_path / "cache")
    assert load(tmp_path / "pets", cache=tmp_path / "cache", size=4).inputs.shape == (4, 3, 4, 4)


def fill(folder: Path, *places: str) -> Path:
    """Two images in each of some places below a folder."""
    for number, place in enumerate(places):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(pixels(2, (6, 5, 3), number)):
            (folder / place / f"{index}.png").write_bytes(encode(image))
    return folder


def test_a_folder_of_another_level_is_recognized(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one = fill(tmp_path / "one", "birds/crow", "birds/wren")
    with pytest.raises(DataError, match=r"too high: .* birds/crow, birds/wren\. Give .*one/birds"):
        load_folder(one, cache=cache)
    many = fill(tmp_path / "many", "birds/crow", "birds/wren", "leaves/oak", "leaves/elm")
    (many / "empty").mkdir()
    with pytest.raises(DataError, match=r"seems .* too high: .* give one of them: .*many/birds"):
        load_folder(many, cache=cache)
    with pytest.raises(DataError, match=r"holds images itself.* per class: .*many/birds\?"):
        load_folder(many / "birds/crow", cache=cache)
    assert load_folder(many / "birds", cache=cache).classes == ("crow", "wren")
    # Images of a class may lie deeper, or some of them.
    deep = fill(tmp_path / "deep", "cat/monday", "dog/monday")
    assert list(load_folder(deep, cache=cache).labels) == [0, 0, 1, 1]
    mixed = fill(tmp_path / "mixed", "cat", "cat/old", "dog/old", "dog/new")
    assert list(load_folder(mixed, cache=cache).labels) == [0] * 4 + [1] * 4


def test_empty_folder_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="has no images"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match="is not a folder"):
        load_folder(tmp_path / "nothing")
    image_folder(tmp_path / "pets")
    with pytest.raises(SettingError, match="unknown mode"):
        load_folder(tmp_path / "pets", mode="CMYK")
    with pytest.raises(SettingError, match="unknown split"):
        load_folder(tmp_path / "pets", "valid")
    with pytest.raises(SettingError, match="at least 1"):
        load_folder(tmp_path / "pets", size=0)


def test_npz_arrays(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    inputs = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    np.savez(
        file, inputs=inputs, labels=np.array([0, 1, 0, 1, 2], dtype=np.uint8),
        test_inputs=inputs[:2], test_labels=[1, 3],
    )  # fmt: skip
    train, test = load(file), load_npz(file, "test")
    assert np.array_equal(train.inputs, inputs) and train.labels.dtype == np.int64
    assert list(test.labels) == [1, 3]
    assert train.classes == test.classes == ("0", "1", "2", "3")
    np.savez(file, inputs=inputs[:2], labels=[0, 1], classes=["no", "yes"])
    assert load(file).classes == ("no", "yes")


def test_npz_labels_are_taken_as_they_are(tmp_path: Path) -> None:
    file, inputs = tmp_path / "set.npz", np.zeros((4, 3), dtype=np.uint8)
    np.savez(file, inputs=inputs, labels=np.array([12, 5, 7, 5], dtype=np.uint8))
    found = load(file)
    assert found.classes == ("5", "7", "12") and found.labels.tolist() == [2, 0, 1, 0]
    np.savez(
        file, inputs=inputs, labels=["odd", "even", "odd", "even"],
        test_inputs=inputs[:1], test_labels=["odd"],
    )  # fmt: skip
    assert load(file).classes == load(file, "test").classes == ("even", "odd")
    assert load(file).labels.tolist() == [1, 0, 1, 0] and load(file, "test").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.zeros((2, 3))}, "no array labels; it has inputs"),
        ({"x": np.zeros(2)}, "no array inputs nor labels"),
        ({"inputs": np.zeros((2, 3)), "labels": [0, 1, 2]}, "do not match 3 labels"),
        ({"inputs": np.zeros((2, 3)), "labels": [0.5, 1.0]}, "one integer or text a sample"),
        (
            {"inputs": np.zeros((2, 3)), "labels": ["a", "b"], "classes": ["a", "b"]},
            "one integer a sample",
        ),
        ({"inputs": np.zeros((2, 3)), "labels": [0, -1]}, "is negative"),
        ({"inputs": np.array(["a", "b"]), "labels": [0, 1]}, "give numbers"),
        ({"inputs": np.zeros((2, 3)), "labels": [0, 5], "classes": ["a"]}, "1 class names"),
        ({"inputs": np.array([{}, {}]), "labels": [0, 1]}, "cannot be read as .npz"),
    ],
)
def test_wrong_npz_files_are_refused(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "set.npz")


def test_unreadable_npz_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "none.npz")
    np.savez(tmp_path / "set.npz", inputs=np.ones((20, 3)), labels=np.ones(20, dtype=int))
    data = (tmp_path / "set.npz").read_bytes()
    for broken in (b"", b"text", b"\x93NUMPY", data[:-40], data[:200] + b"\0" * 50 + data[250:]):
        (tmp_path / "set.npz").write_bytes(broken)
        with pytest.raises(DataError, match=r"set\.npz"):
            load(tmp_path / "set.npz")
    with pytest.raises(SettingError, match="unknown split"):
        load(tmp_path / "set.npz", "valid")


def test_fit_frames_and_repeats() -> None:
    gray = pixels(3, (1, 28, 28))
    out = fit(gray, 3, 32)
    assert out.shape == (3, 3, 32, 32) and out.dtype == np.uint8
    assert np.array_equal(out[:, 2, 2:30, 2:30], gray[:, 0])
    assert out.sum(dtype=int) == 3 * gray.sum(dtype=int)
    color = pixels(2, (3, 32, 32))
    assert fit(color, 3, 32) is color
    for images, channels, size in ((color, 3, 16), (color[:, :2], 1, 32), (color / 2, 1, 32)):
        with pytest.raises(DataError, match="do not fit"):
            fit(images, channels, size)


def test_fit_makes_colors_gray_as_decoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("tinysubnets.datasets.images.GRAY_BATCH", 2)
    color = pixels(5, (3, 8, 6))
    expected = [np.asarray(image.fromarray(c.transpose(1, 2, 0)).convert("L")) for c in color]
    assert np.array_equal(fit(color, 1, 8)[:, 0, :, 1:7], np.stack(expected))
