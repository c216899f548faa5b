"""The benchmark over pretrained networks, in small: every method gives rows, and a run goes on."""

from __future__ import annotations

import copy
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

import make_results  # noqa: E402
from benchmarks import pretrained as benchmark  # noqa: E402
from benchmarks import pretrained_table  # noqa: E402


class Net(nn.Module):
    """A 3x3 convolution, a pointwise one, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.point, self.inner = nn.Conv2d(6, 12, 1), nn.Linear(12, 10)
        self.fc = nn.Linear(10, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(self.norm(self.first(x)).relu()).relu().mean((2, 3))
        return self.fc(self.inner(x).relu())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arrays of two far tasks and a near one, and the options of a short run over them."""
    module: Any = types.ModuleType("networks_of_a_benchmark")

    def small() -> nn.Module:
        torch.manual_seed(0)
        return Net()

    module.small = small
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rng = np.random.default_rng(0)
    for name in ("far-0-dots", "far-1-lines", "near-0"):
        arrays = {}
        for part, count in (("", 40), ("test_", 20)):
            labels = np.arange(count) % 2
            images = rng.integers(0, 150, (count, 3, 32, 32)).astype(np.uint8)
            images[labels == 1, 0] += 100
            arrays |= {f"{part}inputs": images, f"{part}labels": labels}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    words = ["run", "--arrays", str(tmp_path), "--base", "networks_of_a_benchmark:small"]
    words += ["--size", "16", "--epochs", "1", "--batch", "16", "--seeds", "0", "--device", "cpu"]
    return [*words, "--out", str(tmp_path / "rows.jsonl")]


@pytest.mark.slow
def test_every_method_gives_rows_and_a_run_goes_on(
    place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(place[-1])
    place = [*place, "--machine", "a busy core"]
    one_rate = [*place, "--lrs", "1e-3"]
    benchmark.main([*one_rate, "--streams", "far", "--methods", "ours", "full fine-tuning"])
    first = out.read_text()
    rows = [json.loads(line) for line in first.splitlines()]
    assert [r["method"] for r in rows].count("ours") == 2 and len(rows) == 2 + 2 * 2
    benchmark.main([*place, "--lrs", "1e-3", "3e-3"])  # rates that are known are not chosen again
    assert out.read_text().startswith(first)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 3 * (3 + 2 + 1 + 2 + 2)  # with both forms of fine-tuning and of lora
    assert {r["method"] for r in rows} == {*benchmark.OURS, *benchmark.USUAL}
    far = [r for r in rows if r["stream"] == "far" and r["method"] == "ours"]
    assert all(r["lr"] == 1e-3 for r in far)
    assert all(0 <= r["valid"] <= 100 and 0 <= r["test"] <= 100 for r in rows)
    sizes = {(r["method"], r["note"]): r["size_bytes"] for r in rows if r["task"] == "near-0"}
    weights = sum(p.numel() for p in Net().parameters()) - 5 * 11  # a head of two classes
    # The statistics of norms stay those of the base, and take nothing.
    assert sizes["full fine-tuning", ""] == 2 * weights
    matrices = 6 * 27 + 12 * 6 + 12 * 10
    one_bit = 2 * (weights - matrices) + matrices / 8 + 3 * 4
    assert sizes["full fine-tuning", "one-bit difference"] == one_bit
    assert sizes["lora-4", ""] == 2 * (4 * (6 + 12) + 4 * (12 + 10) + 2 * 11)
    assert sizes["lora-4", "our codec"] < sizes["lora-4", ""] < sizes["lora-16", ""]
    text = capsys.readouterr().out
    assert (
        "**Far** from" in text
        and "| lora-16, our codec |" in text
        and "seed 0, near, ours:" in text
    )
    assert (
        "34 to train, 6 to validate and 20 to test a task with, 1 epochs, seed 0, on a busy core"
        in text
    )
    with pytest.raises(SystemExit, match=r"'pixels': 16.*'pixels': 20"):
        benchmark.main([*one_rate, "--size", "20"])
    before = out.read_text()
    benchmark.main(one_rate)
    assert out.read_text() == before


def test_arrays_keep_the_classes_of_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred classes in a random order each task has ten, all samples under their own."""
    from tinysubnets.datasets import loaders

    def load(name: str, split: str, folder: str, size: int | None = None) -> Any:
        num = 100 if name == "cifar100" else 10
        labels = np.tile(np.arange(num), 5)
        images = np.broadcast_to(labels[:, None, None, None], (len(labels), 1, 32, 32))
        return types.SimpleNamespace(inputs=images.astype(np.uint8), labels=labels)

    monkeypatch.setattr(loaders, "load", load)
    words = ["--data", "nowhere", "--out", str(tmp_path), "--train", "3", "--test", "2"]
    benchmark.main(["prepare", *words])
    seen: list[int] = []
    for number in range(10):
        with np.load(tmp_path / f"near-{number}.npz") as arrays:
            for part, count in (("", 3), ("test_", 2)):
                pixels, labels = arrays[f"{part}inputs"][:, 0, 0, 0], arrays[f"{part}labels"]
                assert arrays[f"{part}inputs"].shape == (10 * count, 3, 32, 32)
                assert np.bincount(labels).tolist() == [count] * 10
                classes = [set(pixels[labels == c].tolist()) for c in range(10)]
                assert all(len(c) == 1 for c in classes)
        seen += [c for found in classes for c in found]
    assert sorted(seen) == list(range(100))
    assert len(list(tmp_path.glob("far-*.npz"))) == 4


def test_a_run_ends_when_its_seconds_are_over(
    place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([*place, "--methods", "full fine-tuning", "--lrs", "1e-3", "--seconds", "1e-9"])
    assert "goes on from here" in capsys.readouterr().out and not Path(place[-1]).exists()
    with pytest.raises(SystemExit, match="unknown methods"):
        benchmark.main([*place, "--methods", "magic"])


def row(method: str, seed: int, task: str, test: float, **changes: Any) -> dict[str, Any]:
    """A row of the whole benchmark."""
    told = {"base": "my_networks:lite0", "device": "a GPU", "pixels": 96, "epochs": 10, "lr": 0.001}
    told |= {"num_classes": 10, "num_train": 3825, "num_valid": 675, "num_test": 1000}
    told |= {"valid": test + 1, "size_bytes": 5000, "backbone_bytes": 10_000_000, "seconds": 3.4}
    told |= {"stream": task.partition("-")[0], "ours": method == "ours", "note": ""}
    return told | {"method": method, "seed": seed, "task": task, "test": test} | changes


def cells(text: str) -> dict[str, list[str]]:
    found = [[c.strip() for c in t.split("|")[1:-1]] for t in text.splitlines() if "|" in t]
    return {line[0]: line[1:] for line in found}


def test_tables_have_what_every_method_has_done() -> None:
    rows = [
        row("ours", seed, f"far-{task}", 80 + 10 * seed + task, note="head 80.0 %")
        for seed in range(3)
        for task in range(4)
    ]
    rows += [row("full", seed, f"far-{task}", 50.0) for seed in range(3) for task in range(4)]
    rows += [row("full", 0, "far-0", 9.0, note="one-bit")]
    text = pretrained_table.tables(rows)
    found = cells(text)
    assert found["ours"][0] == "80.00" and found["full, one-bit"][0] == "9.00"  # one task of one
    assert "Small: 1 of 3 seeds, 1 of 4 tasks;" in text
    whole = pretrained_table.tables(rows[:-1])
    assert cells(whole)["ours"] == ["91.50 ± 10.00", "92.50", "5.0", "0.05", "3", "0.001"]
    assert cells(whole)["full"][0] == "50.00 ± 0.00" and "Small" not in whole
    assert (
        "4 tasks of 10 classes over `my_networks:lite0`, images of 96 px, 3,825 to train" in whole
    )
    few = pretrained_table.tables([row("ours", 0, "near-0", 7.0, num_train=435, pixels=64)])
    assert "1 of 3 seeds, 1 of 10 tasks, 64 of 96 px" in few and " 435 to train" in few
    apart = [row("ours", 0, "near-0", 7.0), row("full", 1, "near-0", 7.0)]
    assert "no task has been learned by every method" in pretrained_table.tables(apart)


def test_published_rows_are_tables_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_results, "RESULTS", tmp_path)
    text = "<!-- results: pretrained -->\nold\n<!-- end of results -->"
    assert "no rows are published" in make_results.rewritten(text, {})
    (tmp_path / "pretrained").mkdir()
    rows = [row("ours", 0, "far-0", 81.0), row("ours", 0, "near-0", 71.0)]
    lines = "".join(json.dumps(r) + "\n" for r in rows)
    (tmp_path / "pretrained" / "lite0.jsonl").write_text(lines)
    made = make_results.rewritten(text, {})
    assert "81.00" in made and "71.00" in made and "old" not in made
    assert made.index("**Near**") < made.index("**Far**")
    assert "`results/pretrained/lite0.jsonl`" in made
    assert pretrained_table.summary(tmp_path / "pretrained").splitlines() == [
        "| method | near: test % | near: kB a task | far: test % | far: kB a task |",
        "| --- | --- | --- | --- | --- |",
        "| ours | 71.00 | 5.0 | 81.00 | 5.0 |",
    ]
    for name, block in (("docs/pretrained.md", "pretrained"), ("README.md", "pretrained-summary")):
        assert name in make_results.DOCUMENTS
        assert f"<!-- results: {block} -->" in (make_results.ROOT / name).read_text("utf-8")


def test_low_rank_differences_are_those_of_peft() -> None:
    pytest.importorskip("peft")
    net, inputs = Net().eval(), torch.randn(5, 3, 16, 16)
    ours = benchmark.with_low_rank(copy.deepcopy(net), "fc", 4)
    theirs = benchmark.with_peft(copy.deepcopy(net), "fc", 4)
    mine = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.normal_()
                layer = name.split(".")[2]
                side = "down" if "lora_A" in name else "up"
                mine[f"{layer}.{side}.weight"].copy_(parameter)
    torch.testing.assert_close(ours(inputs), theirs(inputs))
    assert not torch.allclose(ours(inputs), net(inputs))
