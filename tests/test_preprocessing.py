"""How pictures become inputs: done alike when learned and when predicted, and recorded."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import models
from tinysubnets import networks
from tinysubnets.cli import main
from tinysubnets.datasets.images import decode_image, sniff
from tinysubnets.datasets.user_files import (
    image_input,
    preprocessed_alike,
    read_files,
    read_task,
    recorded_preprocessing,
)
from tinysubnets.errors import DataError, SettingError, TaskError
from tinysubnets.experiments import recipe
from tinysubnets.experiments.recipe import Plan
from tinysubnets.experiments.run import Experiment
from tinysubnets.experiments.run_dir import RunDir
from tinysubnets.format.card import onnx_snippet
from tinysubnets.format.onnx import to_onnx
from tinysubnets.method.learner import TinySubNets
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import Sample
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.checks import picture_pixels
from tinysubnets.tasks.preprocessing import CONSTANT, ORIENTATION, Preprocessing
from tinysubnets.tasks.task import Task

Image = pytest.importorskip("PIL.Image")
FEW = pytest.mark.filterwarnings("ignore::tinysubnets.errors.FewSamplesWarning")


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Any:
    """A picture whose middle differs from its borders."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 80, (height, width, 3), dtype=np.uint8)
    pixels[height // 4 : -height // 4, width // 4 : -width // 4] += 120
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Any, kind: str = "png", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def write(
    folder: Path, count: int = 12, size: tuple[int, int] = (24, 16), mode: str = "RGB"
) -> None:
    """Pictures of two classes: bright ones, and dark ones."""
    for kind in ("bright", "dark"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            image = picture(*size, mode=mode, seed=number)
            levels = list(range(256)) * len(image.getbands())
            lit = image.point([min(255, v + 40) if kind == "bright" else v // 2 for v in levels])
            lit.save(folder / kind / f"{number}.png")


def test_what_is_done_to_a_picture() -> None:
    wide = picture(30, 20)
    plain = Preprocessing("RGB", 10, 10, resize=10).apply(wide)
    small = wide.resize((15, 10), Image.Resampling.BILINEAR).crop((2, 0, 12, 10))
    assert np.array_equal(plain, np.asarray(small).transpose(2, 0, 1))
    cut = Preprocessing("L", 8, 8, resize=10)
    gray = wide.convert("L").resize((15, 10), Image.Resampling.BILINEAR).crop((3, 1, 11, 9))
    assert np.array_equal(cut.apply(wide)[0], np.asarray(gray)) and cut.shape == (1, 8, 8)
    framed = replace(cut, frame=12, channels=3)
    out = framed.apply(wide)
    assert out.shape == framed.shape == (3, 12, 12)
    assert np.array_equal(out[1, 2:10, 2:10], np.asarray(gray)) and out[:, :2].max() == 0
    exact = Preprocessing("RGB", 20, 30)
    assert np.array_equal(exact.apply(wide), np.asarray(wide).transpose(2, 0, 1))
    with pytest.raises(DataError, match="40x20 pixels, not 30x20"):
        exact.apply(picture(40, 20))
    assert exact.for_any_size().apply(picture(90, 80)).shape == (3, 20, 30)
    assert "shorter side resized to 10 pixels" in str(cut) and "black square of 12" in str(framed)


@pytest.mark.parametrize(
    "made",
    [
        Preprocessing("RGB", 64, 64, 72),
        Preprocessing("L", 8, 9),
        Preprocessing("L", 28, 28, None, 32, 3),
    ],
)
def test_it_is_plain_data_in_a_file(made: Preprocessing, tmp_path: Path) -> None:
    assert Preprocessing.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    store = SubnetStore(models.architecture())
    models.add_task(store, 0, preprocessing=made.as_dict())
    models.add_task(store, 1, preprocessing=made.as_dict())
    store.save(tmp_path)
    found = SubnetStore.load(tmp_path).subnet("task 1").preprocessing
    assert found is not None and Preprocessing.from_dict(found) == made
    assert str(made) in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "CMYK", "height": 8, "width": 8},
        {"mode": "RGB", "height": 8},
        {"mode": "RGB", "height": 8, "width": 0},
        {"mode": "RGB", "height": 8, "width": 10**9},
        {"mode": "RGB", "height": 8, "width": 8.0},
        {"mode": "RGB", "height": 8, "width": True},
        {"mode": "RGB", "height": 8, "width": 8, "resize": "8"},
        {"mode": "RGB", "height": 8, "width": 8, "frame": 7},
        {"mode": "RGB", "height": 8, "width": 8, "channels": 5},
        {"mode": "RGB", "height": 8, "width": 8, "rotate": 90},
        {"mode": "RGB", "height": 8, "width": 8, "crop": "random"},
        {"size": [1, 2]},
    ],
)
def test_what_is_not_known_is_refused_and_shown_harmlessly(
    values: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="not known to this version"):
        Preprocessing.from_dict(values)
    store = SubnetStore(models.architecture())
    models.add_task(store, 0, preprocessing=values, sample=Sample(torch.uint8, (192,)))
    store.save(tmp_path)  # a model of another version can still be read, with arrays
    subnet = SubnetStore.load(tmp_path).subnet("task 0")
    with pytest.raises(DataError):
        image_input(encoded(picture(9, 9)), subnet)


def test_pictures_are_turned_upright_as_their_exif_says(tmp_path: Path) -> None:
    lying = Image.Exif()
    lying[ORIENTATION] = 6  # the camera was turned: what is up lies at the left
    upright = picture(6, 4)
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=lying)
    form = Preprocessing("RGB", 4, 6)
    encoded = (tmp_path / "a.png").read_bytes()
    assert sniff(encoded) == form
    assert np.array_equal(decode_image(encoded, form), form.apply(upright))
    assert np.array_equal(picture_pixels(Image.open(tmp_path / "a.png")), form.apply(upright))


def test_a_record_that_does_not_fit_the_inputs_is_refused() -> None:
    store = SubnetStore(models.architecture())
    made = Preprocessing("RGB", 9, 9).as_dict()
    subnet = models.add_task(store, 0, preprocessing=made, sample=Sample(torch.uint8, (3, 8, 8)))
    with pytest.raises(DataError, match=r"gives inputs of shape \(3, 9, 9\), and it takes"):
        recorded_preprocessing(subnet)


@FEW
def test_a_picture_is_predicted_as_it_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "photos")
    task = Task.from_folder("light", tmp_path / "photos", size=8, valid=0.25)
    assert task.preprocessing == Preprocessing("RGB", 8, 8, 8)
    # Learned with a border that is cut off, as data sets of photos often are.
    bordered = replace(task.preprocessing, resize=12)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    pixels = np.stack([bordered.apply(Image.open(f)) for f in files])
    labels = [f.parent.name for f in files]
    task = replace(Task.from_arrays("light", pixels, labels, valid=0.25), preprocessing=bordered)
    learner = TinySubNets(
        Architecture(networks.build("small-cnn", in_channels=3, image_size=8)),
        device="cpu",
        epochs=2,
    )
    learner.learn(task)
    learner.save(tmp_path / "model")
    store = SubnetStore.load(tmp_path / "model")
    assert store.subnet("light").preprocessing == bordered.as_dict()
    alike = preprocessed_alike(store.subnets.values())  # what `tsn learn` does to a further task
    write(tmp_path / "more", count=4)
    sample = store.subnet("light").sample
    more, _ = read_task("more", str(tmp_path / "more"), [sample], 0, alike=alike)
    assert alike == {sample: bordered} and more.preprocessing == bordered
    wanted = store.logits("light", pixels)
    pictures = [Image.open(f) for f in files]
    assert torch.equal(store.logits("light", pictures), wanted)
    assert np.array_equal(read_files(list(map(str, files)), store.subnet("light"))[1], pixels)
    assert store.evaluate("light", pictures, labels).num_samples == len(files)
    command = ["predict", str(tmp_path / "model"), "--task", "light", "--json", *map(str, files)]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["classes"][0]["name"] for row in told] == store.predict("light", pixels).tolist()
    assert main([*command[:5], str(tmp_path / "photos")]) == 0  # all in a folder, sorted
    assert json.loads(capsys.readouterr().out)["predictions"] == told
    (tmp_path / "empty").mkdir()
    assert main([*command[:5], str(tmp_path / "empty")]) == 2
    assert "there are no images in this folder" in capsys.readouterr().err


@pytest.mark.slow
@FEW
@pytest.mark.parametrize(
    ("how", "is_flat"),
    [
        (Preprocessing("RGB", 8, 10, resize=11), False),
        pytest.param(
            Preprocessing("L", 6, 7, resize=6, frame=10, channels=3), False, marks=pytest.mark.slow
        ),
        pytest.param(Preprocessing("L", 8, 8), True, marks=pytest.mark.slow),
    ],
    ids=["cut", "framed", "flat"],
)
def test_the_cards_lines_for_onnxruntime_label_as_the_store_does(
    how: Preprocessing,
    is_flat: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    store = learned_store(how, is_flat)
    monkeypatch.chdir(tmp_path)
    store.save(".")
    to_onnx(store, "light", "task.onnx")
    text = Path("README.md").read_text(encoding="utf-8")
    lines = text.split("```python\n")[-1].split("```")[0]
    about = {p.key: json.loads(p.value) for p in onnx.load("task.onnx").metadata_props[1:]}
    assert Preprocessing.from_dict(about["preprocessing"]) == how.for_any_size()
    scale = store.subnet("light").normalization
    told = about.get("normalization")  # of few channels; it is done inside
    if is_flat:
        to_onnx(store, None, "all.onnx")  # where all tasks prepare pictures alike
        told_of_all = {p.key: p.value for p in onnx.load("all.onnx").metadata_props}
        assert json.loads(told_of_all["preprocessing"]) == about["preprocessing"]
    assert is_flat or (told["inside"] and np.allclose(told["mean"], scale.mean))
    needed = (how.frame is not None) + (how.channels is not None) + is_flat
    assert len([line for line in lines.splitlines() if line]) == 15 + needed
    for seed, size in enumerate([(17, 9), (9, 23), (how.width, how.height), (3, 2), (40, 40)]):
        lying = Image.Exif()
        lying[ORIENTATION] = 1 + 5 * (seed % 2)  # upright, or turned to the left
        picture(*size, seed=seed).save("photo.jpg", exif=lying)
        space: dict[str, Any] = {}
        exec(compile(lines, "README.md", "exec"), space)
        shown, opened = capsys.readouterr().out.strip(), Image.open("photo.jpg")
        wanted = store.logits("light", opened)
        assert np.allclose(space["logits"], wanted, atol=1e-4)
        assert [shown] == store.predict("light", opened).tolist()
        assert main(["predict", ".", "--task", "light", "--json", "photo.jpg"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["predictions"]
        assert told["classes"][0]["name"] == shown


def learned_store(how: Preprocessing, is_flat: bool) -> SubnetStore:
    """A model of one task, learned from pictures of many colors that became inputs so."""
    pictures = [picture(how.width, how.height, seed=i) for i in range(40)]
    pixels = np.stack([how.for_any_size().apply(p) for p in pictures])
    kinds = np.where(np.arange(40) % 3, "dark", "bright")
    pixels[kinds == "bright"] //= 2
    inputs = pixels.reshape(len(pixels), -1) if is_flat else pixels
    net = (
        networks.build("mlp", in_features=inputs.shape[1], hidden=(12, 12))
        if is_flat
        else networks.build("small-cnn", in_channels=how.shape[0], image_size=max(how.shape[1:]))
    )
    task = replace(Task.from_arrays("light", inputs, kinds, valid=0.25), preprocessing=how)
    learner = TinySubNets(Architecture(net), device="cpu", epochs=1, pruning={"iterations": 0})
    learner.learn(task)
    return learner.store


def test_the_documentation_has_the_lines_of_the_card() -> None:
    subnet = learned_store(Preprocessing("RGB", 16, 16, 16), False).subnet("light")
    page = Path(__file__).parent.parent / "docs" / "models.md"
    assert onnx_snippet(subnet, "light.onnx", "photos/day/0.png") in page.read_text("utf-8")


@FEW
def test_pictures_without_a_tasks_name() -> None:
    how = Preprocessing("RGB", 8, 8, resize=10)
    store = learned_store(how, False)
    shown = [picture(30, 20, seed=i) for i in range(3)]
    assert store.predict(shown).labels.tolist() == store.predict("light", shown).tolist()
    kept = store.subnet("light")
    other = replace(how, resize=8).as_dict()
    store.add_(replace(kept, name="close", number=-1, preprocessing=other))
    with pytest.raises(TaskError, match="pictures become other inputs for task"):
        store.predict(shown)
    assert store.predict(shown, among=["close"]).tasks.tolist() == ["close"] * 3


def test_a_long_strip_takes_no_gigabytes() -> None:
    strip = Image.new("L", (60_000, 1))
    with pytest.raises(DataError, match="60000x1 pixels, too long"):
        Preprocessing("L", 1000, 1000, resize=1000).apply(strip)


def test_runs_and_learned_tasks_record_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gray and color pictures, as a recipe brings tasks to one shape, and to one way of reading."""
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "gray", size=(6, 6), mode="L")
    write(tmp_path / "color", size=(20, 14))
    (tmp_path / "mine.toml").write_text(
        '[tasks.color]\ndata = "color"\n[tasks.gray]\ndata = "gray"\n'
        '[data]\nimage_size = 8\nchannels = 3\n[network]\nname = "small-cnn"\nin_channels = 3\n'
        "[training]\nepochs = 2\n",
        encoding="utf-8",
    )
    with RunDir(tmp_path / "run") as folder:
        plan = Plan(recipe.load(str(tmp_path / "mine.toml")), 0, "cpu", 1)
        experiment = Experiment.begin(plan, folder)
        tasks = [experiment.scenario.task(i) for i in range(2)]
        for _ in experiment.steps():
            pass
    store = SubnetStore.load(tmp_path / "run")
    found = {n: Preprocessing.from_dict(s.preprocessing or {}) for n, s in store.subnets.items()}
    assert found["color"] == found["gray"] == Preprocessing("RGB", 8, 8, 8)
    for task in tasks:  # the very pixels that were learned, from the files
        files = sorted((tmp_path / task.name).rglob("*.png"))
        decoded = read_files(list(map(str, files)), store.subnet(task.name))[1]
        learned = {bytes(t.numpy().tobytes()) for t in task.train.inputs()}
        assert learned <= {each.tobytes() for each in decoded}
    capsys.readouterr()
    # So that the task of a picture can be found without its name.
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "gray/dark/0.png")]) == 0
    words = ["learn", str(tmp_path / "run"), "--task", "more", "--data", str(tmp_path / "color")]
    assert main([*words, "--device", "cpu", "--keep-anyway"]) == 0
    more = SubnetStore.load(tmp_path / "run").subnet("more").preprocessing
    assert more == Preprocessing("RGB", 8, 8, 8).as_dict()


def test_pixels_that_are_no_pictures_record_nothing() -> None:
    x, y = np.zeros((20, 1, 8, 8), np.uint8), np.arange(20) % 2
    assert Task.from_arrays("a", x, y).preprocessing is None
    permuted = scenario_task("permuted-digits", 1)
    assert permuted.preprocessing is None  # which a picture would have to be as well
    assert scenario_task("permuted-digits", 0).preprocessing == Preprocessing("L", 8, 8)
    images = [picture(8, 9, "L", seed) for seed in range(20)]
    assert Task.from_arrays("a", images, y).preprocessing == Preprocessing("L", 9, 8)


def scenario_task(name: str, index: int) -> Task:
    from tinysubnets import scenarios

    return scenarios.build(name, recipe.load(name).data, seed=0).task(index)


def test_the_constant_part_is_written_for_other_readers() -> None:
    assert Preprocessing("RGB", 4, 4).as_dict().items() >= CONSTANT.items()


DRAWN = np.linspace(0, 255, 48).astype(np.uint8).reshape(6, 8)


def gray(data: bytes) -> np.ndarray:
    form = sniff(data)
    assert form.mode == "L"
    return decode_image(data, form)[0]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(kind: str) -> None:
    deep = Image.fromarray(DRAWN.astype(np.uint16) * 257)
    assert deep.mode.startswith("I;16")
    assert np.array_equal(gray(encoded(deep, kind)), DRAWN)
    odd = Image.fromarray(np.array([[0, 128, 129, 385, 386, 65535]], np.uint16))
    assert gray(encoded(odd, kind)).tolist() == [[0, 0, 1, 1, 2, 255]]
    assert np.array_equal(picture_pixels(deep)[0], DRAWN)


def test_what_is_transparent_is_white() -> None:
    opaque = np.full_like(DRAWN, 255)
    colors = np.stack([DRAWN, DRAWN[::-1], DRAWN], 2)
    both = np.concatenate([colors, opaque[..., None]], 2)
    data = encoded(Image.fromarray(both))
    assert np.array_equal(decode_image(data, sniff(data)).transpose(1, 2, 0), colors)
    both[..., 3] = 0  # whatever color is hidden
    data = encoded(Image.fromarray(both))
    assert decode_image(data, sniff(data)).min() == 255
    drawing = Image.new("LA", (8, 6))
    drawing.putalpha(Image.fromarray(DRAWN))  # black, as far as it is not transparent
    assert np.array_equal(gray(encoded(drawing)), 255 - DRAWN)
    palette = Image.fromarray(colors).quantize(4)
    data = encoded(palette, transparency=int(np.asarray(palette)[0, 0]))
    pixels = decode_image(data, sniff(data))
    assert pixels.shape == (3, 6, 8) and (pixels[:, 0, 0] == 255).all()


def test_numbers_without_a_white_are_refused() -> None:
    for values in (DRAWN.astype(np.float32) / 255, DRAWN.astype(np.int32) * 1000):
        data = encoded(Image.fromarray(values), "TIFF")
        for read in (sniff, lambda d: decode_image(d, Preprocessing("L", 6, 8))):
            with pytest.raises(DataError, match="32-bit numbers"):
                read(data)
    assert np.array_equal(gray(encoded(Image.fromarray(DRAWN.astype(np.int32)), "TIFF")), DRAWN)


@pytest.mark.parametrize("shape", [(1 << 25,), (4, 1 << 14, 1 << 14)])
def test_what_a_file_says_of_inputs_takes_no_memory(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A kilobyte that tells of inputs of gigabytes: an export would have made one."""
    store = models.store("named", 1)
    (task,) = store.tasks
    kind = torch.uint8 if len(shape) == 3 else torch.float32
    store.subnets[task] = replace(store.subnet(task), sample=Sample(kind, shape))
    store.save(tmp_path)
    again = SubnetStore.load(tmp_path)
    assert again.subnet(task).sample is None and again.digest(task) == store.digest(task)
    with pytest.raises(TaskError, match="does not record what inputs"):
        to_onnx(again, task, tmp_path / "task.onnx")
    assert Sample.of(torch.empty((1, *shape), device="meta", dtype=kind)) is None  # never written
    assert Sample.of(torch.zeros(2, 3)) == Sample(torch.float32, (3,))


def test_pictures_are_brought_to_no_size_that_a_file_may_not_tell(tmp_path: Path) -> None:
    large = {"mode": "L", "height": 1 << 14, "width": 1 << 14, "resize": 1 << 14, "channels": 4}
    with pytest.raises(DataError, match="height is 16384"):
        Preprocessing.from_dict(large | CONSTANT)
    assert Preprocessing.from_dict({"mode": "RGB", "height": 2364, "width": 2364} | CONSTANT)
    write(tmp_path / "few", count=2)
    with pytest.raises(SettingError, match=r"size=2365.*at most 2,364 pixels"):
        Task.from_folder("few", tmp_path / "few", size=2365)
