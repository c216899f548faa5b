"""Tasks: labels, splits, normalization, class weights, data sets, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from nets import data, learned, learner, task
from tinysubnets.errors import TaskError
from tinysubnets.tasks.loader import PREFETCH, DeviceLoader
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Split, Task, few_told


def test_labels_of_any_kind_come_back_as_they_were() -> None:
    x, y = data(classes=2)
    kinds: dict[str, Any] = {
        "texts": np.array(["no", "yes"])[y],
        "numbers": np.array([7, -3])[y],
        "truths": y == 1,
        "tensor": torch.from_numpy(y) + 5,
        "list": [f"class {i}" for i in y],
        "objects": np.array(["no", "yes"], dtype=object)[y],
        "number objects": np.array([3, 4], dtype=object)[y],
        "whole floats": y.astype(np.float32),
        "small": y.astype(np.uint8),
    }
    learn = learner(training={"epochs": 1})
    for name, labels in kinds.items():
        learn.learn(Task.from_arrays(name, x, labels))
        wanted = set(np.asarray(labels).tolist())
        answers = learn.predict(name, x)
        assert len(answers) == len(x)
        assert set(answers.tolist()) <= wanted, name
        # Only integers and strings, which a file can hold; true is 1.
        assert all(type(c) in (int, str) for c in learn.store.subnet(name).classes)
    assert learn.store.subnet("truths").classes == (0, 1)
    assert set(learn.store.subnet("texts").classes) == {"no", "yes"}


def test_classes_are_sorted_and_numbered() -> None:
    x, _ = data(samples=6)
    made = Task.from_arrays("a", x, ["b", "c", "a", "b", "c", "a"], valid=(x, list("abcabc")))
    assert made.classes == ("a", "b", "c")
    assert made.train.labels.tolist() == [1, 2, 0, 1, 2, 0]
    assert made.valid.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_splits_are_disjoint_complete_and_stratified() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(400, dtype=np.float32)[:, None] + rng.random((400, 1), dtype=np.float32) / 4
    y = np.repeat([0, 1, 2], [300, 80, 20])
    made = Task.from_arrays("a", x, y, valid=0.1)
    train, valid = made.train.inputs().flatten().tolist(), made.valid.inputs().flatten().tolist()
    assert not set(train) & set(valid)
    assert sorted(train + valid) == sorted(x.flatten().tolist())
    assert torch.bincount(made.valid.labels).tolist() == [30, 8, 2]
    other = Task.from_arrays("a", x, y, valid=0.1, seed=1)
    assert other.valid.inputs().flatten().tolist() != valid
    again = Task.from_arrays("b", x, y, valid=0.1)
    assert again.valid.inputs().flatten().tolist() == valid


def test_labels_stay_with_their_inputs() -> None:
    x = np.arange(60, dtype=np.float32)[:, None]
    made = Task.from_arrays("a", x, np.arange(60) % 3, test=(x[:9], np.arange(9) % 3))
    assert made.test is not None
    for split in (made.train, made.valid, made.test):
        assert (split.inputs().flatten().long() % 3).tolist() == split.labels.tolist()


def test_every_class_is_in_both_parts_where_it_can_be() -> None:
    x, _ = data(samples=9)
    made = Task.from_arrays("a", x, [0, 0, 1, 1, 2, 2, 2, 2, 3], valid=0.1)
    assert sorted(set(made.train.labels.tolist())) == [0, 1, 2, 3]
    assert sorted(set(made.valid.labels.tolist())) == [0, 1, 2]


def test_normalization_rules() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(50) % 2
    images = rng.integers(0, 256, (50, 3, 4, 5)).astype(np.uint8)
    made = Task.from_arrays("images", images, y)
    seen = made.normalization(made.train.inputs())
    assert len(made.normalization.mean) == 3 and seen.dtype == torch.float32
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)

    pixels = Task.from_arrays("pixels", images.reshape(50, -1), y)
    assert len(pixels.normalization.mean) == 1

    floats = (rng.normal(size=(50, 4)) * [1, 10, 100, 0] + 5).astype(np.float32)
    vectors = Task.from_arrays("vectors", floats, y)
    seen = vectors.normalization(vectors.train.inputs())
    assert torch.allclose(seen.mean(0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(seen.std(0, correction=0), torch.tensor([1.0, 1, 1, 0]), atol=1e-4)
    assert vectors.normalization.std[3] == 1.0  # a constant feature is left alone

    assert len(Task.from_arrays("one", floats, y, normalization="scalar").normalization.mean) == 1
    own = Normalization((1.0,), (2.0,))
    kept = Task.from_arrays("own", floats, y, normalization=own)
    assert torch.equal(kept.normalization(torch.tensor([[5.0]])), torch.tensor([[2.0]]))

    tokens = Task.from_arrays("tokens", rng.integers(0, 9, (50, 6)), y)
    assert tokens.normalization == Normalization()
    assert tokens.normalization(tokens.train.inputs()).dtype == torch.int64


def test_no_normalization_leaves_numbers_as_they_are() -> None:
    x = np.arange(40, dtype=np.uint8).reshape(20, 2)
    made = Task.from_arrays("a", x, np.arange(20) % 2, normalization=None)
    seen = made.normalization(torch.from_numpy(x))
    assert torch.equal(seen, torch.from_numpy(x).float())


def test_normalization_is_made_of_training_data_alone() -> None:
    x, y = data()
    wild = (1e3 * x, y)
    plain = Task.from_arrays("a", x, y, valid=(x, y), test=(x, y))
    other = Task.from_arrays("a", x, y, valid=wild, test=wild)
    assert plain.normalization == other.normalization


def test_class_weights() -> None:
    x, _ = data(samples=40)
    y = np.repeat([0, 1], [30, 10])
    balanced = Task.from_arrays("a", x, y, valid=(x, y), class_weights="balanced")
    assert balanced.class_weights == pytest.approx((40 / 60, 40 / 20))
    assert Task.from_arrays("a", x, y, class_weights=[1, 5]).class_weights == (1.0, 5.0)
    assert Task.from_arrays("a", x, y).class_weights is None
    for bad in ("inverse", [1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(TaskError, match="class"):
            Task.from_arrays("a", x, y, class_weights=bad)


def test_class_weights_change_what_is_learned() -> None:
    light = learned(learner(), task(class_weights=[1, 1, 1]))
    heavy = learned(learner(), task(class_weights=[9, 1, 1]))
    plain = learned(learner(), task())
    key = "fc.bias"
    assert not torch.equal(light.task_params[key].decode(), heavy.task_params[key].decode())
    assert torch.equal(light.task_params[key].decode(), plain.task_params[key].decode())


class Items(Dataset):
    """A data set without `targets`, that counts how often it is asked."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.x[index], self.y[index]


def test_data_sets_give_the_same_task_as_arrays() -> None:
    x, y = data()
    kinds = [
        Items(x, y),
        TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    ]
    wanted = Task.from_arrays("a", x, y, valid=0.25, test=(x[:9], y[:9]))
    reference = learner()
    reference.learn(wanted)
    for kind in kinds:
        made = Task.from_datasets("a", kind, valid=0.25, test=Items(x[:9], y[:9]))
        assert made.classes == wanted.classes and made.normalization == wanted.normalization
        assert made.test is not None and wanted.test is not None
        assert torch.equal(made.test.inputs(), wanted.test.inputs())
        assert torch.equal(made.train.inputs(), wanted.train.inputs())
        learn = learner()
        learn.learn(made)
        assert learn.store.digest("a") == reference.store.digest("a")


def test_targets_spare_the_reading_of_items() -> None:
    x, y = data()
    items = Items(x, y)
    items.targets = y.tolist()  # type: ignore[attr-defined]
    read = []
    plain = Items.__getitem__
    items.__class__ = type(
        "Counting", (Items,), {"__getitem__": lambda s, i: (read.append(i), plain(s, i))[1]}
    )
    Task.from_datasets("a", items, normalization=None)
    assert len(read) < 5


def test_data_sets_given_for_validation() -> None:
    x, y = data()
    made = Task.from_datasets("a", Items(x, y), valid=Items(x[:12] + 1, y[:12]))
    assert len(made.train) == len(x) and len(made.valid) == 12
    with pytest.raises(TaskError, match="valid"):
        Task.from_datasets("a", Items(x, y), valid=1)
    with pytest.raises(TaskError, match="shape"):
        Task.from_datasets("a", Items(x, y), valid=Items(x[:, :4], y))


def test_data_sets_with_bad_items_are_refused() -> None:
    x, y = data()
    with pytest.raises(TaskError):
        Task.from_datasets("a", Items(x[:0], y[:0]))
    broken = x.copy()
    broken[5, 2] = np.nan
    with pytest.raises(TaskError, match="NaN"):
        Task.from_datasets("a", Items(broken, y))
    ragged: Any = [x[0], x[1][:3], *x[2:]]
    with pytest.raises(TaskError, match="several shapes"):
        Task.from_datasets("a", Items(ragged, y))


def memory_map(path: Path, x: np.ndarray) -> np.memmap:
    out = np.memmap(path, dtype=x.dtype, mode="w+", shape=x.shape)
    out[:] = x
    out.flush()
    return np.memmap(path, dtype=x.dtype, mode="r", shape=x.shape)


def test_memory_maps_are_read_where_they_lie(tmp_path: Path) -> None:
    x, y = data()
    made = Task.from_arrays("a", memory_map(tmp_path / "x", x), y, valid=0.25)
    wanted = task()
    assert isinstance(made.train.source, np.memmap)
    assert torch.equal(made.train.inputs(), wanted.train.inputs())
    x[40, 0] = np.inf
    with pytest.raises(TaskError, match="sample 40"):
        Task.from_arrays("a", memory_map(tmp_path / "bad", x), y)


def test_streamed_and_resident_batches_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    made = Task.from_datasets("a", Items(x, y), valid=0.25)
    resident = learner()
    resident.learn(made)
    monkeypatch.setattr("tinysubnets.tasks.loader.RESIDENT_BYTES", 0)
    monkeypatch.setitem(DeviceLoader.__init__.__kwdefaults__, "resident_bytes", 0)
    assert DeviceLoader(made.train, made.normalization, "cpu").resident is None
    streamed = learner()
    streamed.learn(made)
    assert streamed.store.digest("a") == resident.store.digest("a")


def test_a_streaming_error_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Items):
        armed = False

        def __getitem__(self, index: int) -> Any:
            if self.armed and index == 40:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    monkeypatch.setitem(DeviceLoader.__init__.__kwdefaults__, "resident_bytes", 0)
    items = Failing(*data())
    made = Task.from_datasets("a", items, valid=0.25)
    learn = learner()
    trainer = learn.begin(made)
    items.armed = True
    with pytest.raises(OSError, match="disk is gone"):
        while not trainer.finished:
            trainer.epoch()
    assert learn.store.tasks == () and learn.store.banks == []


def test_a_stream_that_fails_lets_go_of_a_caller_who_has_left() -> None:
    """Its error has no room in a full queue, and nobody is there to make some."""
    failing = threading.Event()

    class Failing(Split):
        def inputs(self, where: Any = slice(None)) -> Tensor:
            if torch.is_tensor(where) and 4 * (PREFETCH + 1) in where:
                failing.set()
                raise OSError("the disk is gone")
            return super().inputs(where)

    made = task()
    split = Failing(made.train.source, made.train.labels, made.train.index)
    loader = DeviceLoader(split, made.normalization, "cpu", resident_bytes=0)
    batches = loader.raw(list(torch.arange(len(split)).split(4)))
    next(batches)
    assert failing.wait(60)
    leaving = threading.Thread(target=batches.close, daemon=True)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(60)
    assert not leaving.is_alive()


def test_arrays_of_every_form_are_read_alike() -> None:
    x, y = data()
    learn = learner()
    learn.learn(Task.from_arrays("a", x, y))
    frozen = x.copy()
    frozen.setflags(write=False)
    forms: dict[str, Any] = {
        "reversed": np.ascontiguousarray(x[::-1])[::-1],
        "columns": np.asfortranarray(x),
        "read-only": frozen,
        "big-endian": x.astype(">f4"),
        "double": x.astype(np.float64),
        "long": x.astype(np.longdouble),
        "tensor": torch.from_numpy(x).requires_grad_(),
        "lists": x.tolist(),
    }
    wanted = Task.from_arrays("a", x, y).train.inputs()
    for name, form in forms.items():
        assert torch.equal(Task.from_arrays(name, form, y).train.inputs().float(), wanted), name
        assert torch.equal(learn.logits("a", form), learn.logits("a", x)), name


def test_pixels_are_not_scaled_behind_the_back_of_a_task() -> None:
    rng = np.random.default_rng(0)
    raw, labels = rng.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8), np.arange(40) % 2
    scaled = (raw / 255).astype(np.float32)
    for given in ({"test": (scaled, labels)}, {"valid": (scaled, labels)}):
        with pytest.raises(TaskError, match=r"float32 from 0 to 0.976: scaled.*inputs \* 255"):
            Task.from_arrays("t", raw, labels, **given)
    task = Task.from_arrays("t", raw, labels, test=(raw.astype(np.float64), labels))
    check = task.normalization.check_scale
    with pytest.raises(TaskError, match="scaled already"):
        check("t", torch.from_numpy(scaled * 2 - 1), torch.uint8)
    # Integers, numbers beyond 1, tasks of floats and of black-and-white pixels are all fine.
    check("t", torch.zeros(3, 1, 4, 4), torch.uint8)
    check("t", torch.full((3, 1, 4, 4), 1.5), torch.uint8)
    check("t", torch.empty(0, 1, 4, 4), torch.uint8)
    standard = (raw - raw.mean()) / raw.std()
    with pytest.raises(TaskError, match="scaled already"):
        check("t", torch.from_numpy(standard), torch.uint8)
    for wrong in (raw.astype(np.int64) * 257, raw - 300.0, np.float32([[0.0, 1e38]])):
        with pytest.raises(TaskError, match="Give pixels from 0 to 255"):
            check("t", torch.from_numpy(wrong), torch.uint8)
    check("t", torch.from_numpy(raw * 1.1 - 10.0), torch.uint8)  # as resampling does
    check("t", torch.from_numpy(scaled), torch.float32)
    assert Task.from_arrays("t", scaled, labels, test=(scaled, labels)).test is not None
    bits = (raw > 40).astype(np.uint8)
    assert Task.from_arrays("t", bits, labels, test=(scaled, labels)).test is not None


def test_a_subnet_that_does_not_know_its_pixels_takes_all() -> None:
    subnet = learned(learner(training={"epochs": 1}), task())
    replace(subnet, sample=None).check_scale(torch.rand(3, 6))


def test_a_split_knows_its_size() -> None:
    split = Split(torch.zeros(10, 3, 4, dtype=torch.uint8), torch.zeros(10, dtype=torch.long))
    assert split.size_bytes() == 120


BAD_INPUTS: dict[str, Any] = {
    "NaN": np.array([[np.nan, 1.0]] * 4, dtype=np.float32),
    "infinite": np.array([[np.inf, 1.0]] * 4, dtype=np.float32),
    "shape": np.zeros((0, 2), dtype=np.float32),
    "at least one feature": np.zeros((4, 0), dtype=np.float32),
    "samples, features": np.zeros(4, dtype=np.float32),
    "type": np.array([["a", "b"]] * 4),
    "bool": np.zeros((4, 2), dtype=bool),
    "complex": np.zeros((4, 2), dtype=np.complex64),
    "object": np.array([[{}, {}]] * 4, dtype=object),
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_bad_inputs_are_refused(message: str) -> None:
    inputs = BAD_INPUTS[message]
    with pytest.raises(TaskError, match=message) as caught:
        Task.from_arrays("mine", inputs, (np.arange(len(inputs)) % 2))
    assert "mine" in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 0, 0], "at least two classes"),
        ([0, 1, 0], "one label per sample"),
        ([[0], [1], [0], [1]], "one label per sample"),
        ([0.5, 1.0, 0.5, 1.0], "not classes"),
        ([0.0, np.nan, 0.0, 1.0], "NaN"),
        (np.array(["a", None, "a", "b"], dtype=object), "NoneType"),
        (np.array([1, "a", 1, "a"], dtype=object), "int, str"),
        ([1j, 2j, 1j, 2j], "complex"),
        (np.array([0, 2**63, 0, 2**63], dtype=np.uint64), "63 bits"),
        (np.array([0, 2**70, 0, 2**70], dtype=object), "63 bits"),
    ],
)
def test_bad_labels_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Task.from_arrays("a", np.zeros((4, 2), dtype=np.float32), labels)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"valid": 0.0}, "valid"),
        ({"valid": 1.0}, "valid"),
        ({"valid": "some"}, "valid"),
        ({"normalization": "image"}, "normalization"),
        ({"normalization": Normalization((0.0,) * 5, (1.0,) * 5)}, "5 channels"),
        ({"test": (np.zeros((3, 5), dtype=np.float32), [0, 1, 2])}, "shape"),
        ({"test": (np.zeros((3, 6), dtype=np.float32), [0, 1])}, "test"),
        ({"test": (np.zeros((3, 6), dtype=np.float32), [0, 1, 9])}, "do not occur in training"),
        ({"test": (np.full((3, 6), np.nan, dtype=np.float32), [0, 1, 2])}, "NaN"),
        ({"test": 3}, "inputs, labels"),
    ],
)
def test_bad_settings_of_a_task_are_refused(how: dict[str, Any], message: str) -> None:
    x, y = data()
    with pytest.raises(TaskError, match=message):
        Task.from_arrays("a", x, y, **how)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_task_needs_a_name(name: Any) -> None:
    with pytest.raises(TaskError, match="name"):
        Task.from_arrays(name, *data())


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (0.0,)), ((0.0,), ()), ((np.nan,), (1.0,))])
def test_bad_normalizations_are_refused(mean: Any, std: Any) -> None:
    with pytest.raises(TaskError, match="normalization"):
        Normalization(mean, std)


def test_few_samples_of_several_tasks_are_told_in_one_sentence() -> None:
    assert few_told({"a": (900, 100)}) == ""
    assert few_told({"a": (9, 5), "b": (900, 100)}).startswith(
        "a has 9 training and 5 validation samples; one of these is worth 20 points"
    )
    assert "worth 2.5 points" in few_told({"a": (360, 40)})
    many = few_told({f"t{i}": (90, 10 + i) for i in range(6)})
    assert many.startswith("t0, t1, t2 and 3 more tasks have 10 to 15 validation samples; ")
    assert "worth up to 10 points" in many
