"""Decoding: real schemas, exact pixels, several processes, and errors that name file and row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_files import encode, mnist_like, pixels, write_parquet
from quick import mostly_slow
from tinysubnets.datasets import decode, worker
from tinysubnets.datasets.images import decode_image
from tinysubnets.datasets.loaders import DecodedSet, load
from tinysubnets.errors import DataError
from tinysubnets.tasks.preprocessing import Preprocessing


def load_here(
    name: str, tmp_path: Path, split: str = "train", size: int | None = None
) -> DecodedSet:
    return load(name, split, root=tmp_path, cache=tmp_path / "cache", size=size)


@pytest.mark.parametrize(("kind", "mode"), [("PNG", None), ("WEBP", "RGB")])
def test_gray_images_come_out_gray_to_the_byte(tmp_path: Path, kind: str, mode: str | None) -> None:
    images = pixels(9, (28, 28))
    write_parquet(
        tmp_path / "ylecun/mnist/mnist/train-00000-of-00001.parquet",
        [encode(image, kind, mode) for image in images],
        {"label": list(range(9))},
    )
    found = load_here("mnist", tmp_path)
    assert found.inputs.shape == (9, 1, 28, 28) and found.inputs.dtype == np.uint8
    assert np.array_equal(found.inputs[:, 0], images)
    assert list(found.labels) == list(range(9)) and found.classes == tuple("0123456789")


def test_shards_and_row_groups_keep_their_order(tmp_path: Path) -> None:
    images = pixels(23, (32, 32, 3))
    for shard, (start, stop) in enumerate([(0, 11), (11, 23)]):
        write_parquet(
            tmp_path / f"uoft-cs/cifar100/cifar100/train-0000{shard}-of-00002.parquet",
            [encode(image, "WEBP") for image in images[start:stop]],
            {"fine_label": list(range(start, stop)), "coarse_label": [3] * (stop - start)},
            image="img",
        )
    found = load_here("cifar100", tmp_path)
    assert np.array_equal(found.inputs, images.transpose(0, 3, 1, 2))
    assert list(found.labels) == list(range(23)) and found.classes[23] == "cloud"


def test_svhn_schema(tmp_path: Path) -> None:
    images = pixels(5, (32, 32, 3))
    write_parquet(
        tmp_path / "ufldl-stanford/svhn/cropped_digits/test-00000-of-00001.parquet",
        [encode(image) for image in images],
        {"label": [1, 9, 2, 0, 5]},
        names=list("0123456789"),
    )
    found = load_here("svhn", tmp_path, "test")
    assert np.array_equal(found.inputs, images.transpose(0, 3, 1, 2))
    assert list(found.labels) == [1, 9, 2, 0, 5] and found.classes == tuple("0123456789")


def test_imagenet100_schema_is_resized_and_cropped(tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(100)]
    tall = np.zeros((400, 300, 3), dtype=np.uint8)
    tall[:, :150, 0] = 200  # the left half is red
    gray = np.full((180, 500), 90, dtype=np.uint8)
    write_parquet(
        tmp_path / "clane9/imagenet-100/data/validation-00000-of-00001.parquet",
        [encode(tall, "JPEG"), encode(gray, "JPEG"), encode(pixels(1, (224, 224, 3))[0], "JPEG")],
        {"label": [0, 99, 4]},
        names=names,
    )
    found = load_here("imagenet100", tmp_path, "test")
    assert found.inputs.shape == (3, 3, 224, 224) and found.classes == tuple(names)
    red = found.inputs[0, 0].astype(int)
    assert abs(red[:, :100].mean() - 200) < 5 and red[:, 124:].mean() < 5
    assert (np.abs(found.inputs[1].astype(int) - 90) <= 2).all()


def test_tiny_imagenet_schema_with_a_gray_jpeg(tmp_path: Path) -> None:
    encoded = [encode(pixels(1, (64, 64, 3))[0], "JPEG"), encode(pixels(1, (64, 64))[0], "JPEG")]
    write_parquet(
        tmp_path / "zh-plus/tiny-imagenet/data/valid-00000-of-00001-70d52db3c749a935.parquet",
        encoded,
        {"label": [199, 0]},
    )
    found = load_here("tiny-imagenet", tmp_path, "test")
    assert found.inputs.shape == (2, 3, 64, 64) and len(found.classes) == 200
    assert np.array_equal(found.inputs[1, 0], found.inputs[1, 2])


def test_unknown_repositories_tell_their_own_columns(tmp_path: Path) -> None:
    images = pixels(6, (9, 7))
    write_parquet(
        tmp_path / "someone/things/data/train-00000-of-00001.parquet",
        [encode(image) for image in images],
        {"kind": [0, 1, 2, 0, 1, 2]},
        image="picture",
        names=["a", "b", "c"],
    )
    found = load_here("someone/things", tmp_path)
    assert np.array_equal(found.inputs[:, 0], images) and found.classes == ("a", "b", "c")
    assert load_here("someone/things", tmp_path, size=8).inputs.shape == (6, 1, 8, 8)


def test_plain_binary_columns_are_images_too(tmp_path: Path) -> None:
    images = pixels(3, (8, 8, 3))
    file = tmp_path / "someone/things/data/train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    encoded = pa.array([encode(image) for image in images], type=pa.binary())
    pq.write_table(pa.table({"img": encoded, "label": pa.array([0, 1, 0], pa.uint8())}), file)
    found = load_here("someone/things", tmp_path)
    assert np.array_equal(found.inputs, images.transpose(0, 3, 1, 2))
    assert found.labels.dtype == np.int64


@pytest.mark.parametrize("workers", [1, 3])
def test_one_process_and_several_decode_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(decode, "IMAGES_PER_WORKER", 1)
    monkeypatch.setattr(decode, "num_cores", lambda: workers)
    monkeypatch.setattr(decode, "PIECE_BYTES", 3 * 28 * 28)
    images = mnist_like(tmp_path, 40)
    assert np.array_equal(load_here("mnist", tmp_path).inputs[:, 0], images)


@pytest.mark.parametrize("workers", mostly_slow([1, 2], [1]))
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[: len(data) // 2], "cannot decode the image"),
        (lambda data: b"not an image", "cannot decode the image"),
        (lambda data: b"", "no image bytes"),
        (lambda data: None, "no image bytes"),
        (lambda data: encode(pixels(1, (27, 28))[0]), "28x27 pixels, not 28x28"),
    ],
)
def test_corrupt_image_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage, reason: str, workers: int
) -> None:
    monkeypatch.setattr(decode, "IMAGES_PER_WORKER", 1)
    monkeypatch.setattr(decode, "num_cores", lambda: workers)
    encoded: list[bytes | None] = [encode(image) for image in pixels(11, (28, 28))]
    encoded[6] = damage(encoded[6])
    file = tmp_path / "ylecun/mnist/mnist/train-00000-of-00001.parquet"
    write_parquet(file, encoded, {"label": [0] * 11})
    with pytest.raises(DataError) as caught:
        load_here("mnist", tmp_path)
    assert f"{file}, row 6: " in str(caught.value) and reason in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.npy"))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pages"])
def test_corrupt_parquet_is_named(tmp_path: Path, damage: str) -> None:
    mnist_like(tmp_path)
    (file,) = tmp_path.rglob("*.parquet")
    data = file.read_bytes()
    pages = data[:4] + bytes(len(data) - 1000) + data[-996:]
    broken = {"cut": data[:-9], "empty": b"", "text": b"<html>404</html>", "pages": pages}
    file.write_bytes(broken[damage])
    with pytest.raises(DataError, match=r"train-00000-of-00001\.parquet"):
        load_here("mnist", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("is_parquet", [False, True])
def test_a_pipe_among_the_files_is_named(tmp_path: Path, is_parquet: bool) -> None:
    """Whoever opened it would wait for its other end."""
    mnist_like(tmp_path)
    (pipe,) = tmp_path.rglob("*.parquet")
    if is_parquet:
        pipe.unlink()
    else:
        pipe = tmp_path / "images" / "a" / "1.png"
        pipe.parent.mkdir(parents=True)
        pipe.with_name("0.png").write_bytes(encode(pixels(1, (8, 8))[0]))
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="not a plain file") as caught:
        load_here("mnist" if is_parquet else str(tmp_path / "images"), tmp_path)
    assert str(pipe) in str(caught.value)


def test_wrong_columns_and_labels_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ylecun/mnist/mnist/train-00000-of-00001.parquet"
    encoded = [encode(image) for image in pixels(3, (28, 28))]
    write_parquet(file, encoded, {"digit": [0, 1, 2]})
    with pytest.raises(DataError, match="no column 'label'; its columns are image, digit"):
        load_here("mnist", tmp_path)
    write_parquet(file, encoded, {"label": [0, 1, 10]})
    with pytest.raises(DataError, match="row 2 of the split: the label is 10"):
        load_here("mnist", tmp_path)
    write_parquet(file, encoded, {"label": [0, None, 1]})
    with pytest.raises(DataError, match="row 1: the label is missing"):
        load_here("mnist", tmp_path)
    write_parquet(file, encoded, {"label": [0, -1, 1]})
    with pytest.raises(DataError, match="row 1: the label is -1"):
        load_here("mnist", tmp_path)


def test_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "IMAGES_PER_WORKER", 1)
    monkeypatch.setattr(decode, "num_cores", lambda: 2)
    mnist_like(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(DataError, match="decoding process"):
        load_here("mnist", tmp_path)


@pytest.mark.slow
def test_a_plain_script_runs_once_whatever_processes_decode(tmp_path: Path) -> None:
    """Without a guard around its lines, as most scripts are written."""
    mnist_like(tmp_path, 20)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from tinysubnets.datasets import decode, loaders\n"
        "decode.IMAGES_PER_WORKER, decode.PIECE_BYTES = 1, 3 * 28 * 28\n"
        "decode.num_cores = lambda: 2\n"
        "found = loaders.load('mnist', root=sys.argv[1], cache=sys.argv[1] + '/cache')\n"
        "print(len(found.inputs))\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("20\n", "", 0)


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker.Decoder, "decode", full)
    mnist_like(tmp_path)
    with pytest.raises(DataError, match="No space left on device"):
        load_here("mnist", tmp_path)


@pytest.mark.parametrize("shape", [(10, 33), (33, 10), (8, 8), (3, 4)])
def test_resize_fills_the_whole_square(shape: tuple[int, int]) -> None:
    image = encode(np.full(shape, 77, dtype=np.uint8))
    out = decode_image(image, Preprocessing("L", 8, 8, resize=8))
    assert out.shape == (1, 8, 8) and (out == 77).all()


def test_size_given_resizes_a_known_set(tmp_path: Path) -> None:
    images = mnist_like(tmp_path, 2)
    found = load_here("mnist", tmp_path, size=14)
    expected = Image.fromarray(images[0]).resize((14, 14), Image.Resampling.BILINEAR)
    assert np.array_equal(found.inputs[0, 0], np.asarray(expected))
    assert np.array_equal(load_here("mnist", tmp_path).inputs[:, 0], images)
