"""The paper's tables: its numbers as printed, ours from real runs, and what was not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiny_runs import make_run
from tinysubnets import paper
from tinysubnets.errors import SettingError
from tinysubnets.experiments import published, recipe
from tinysubnets.experiments.results import read_run
from tinysubnets.paper import measured_tables, numbers
from tinysubnets.paper.measures import Measured
from tinysubnets.paper.render import FORMATS, NOT_RUN, Table, render


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of TSN-wr at four bits, told to be permuted MNIST, whose tables they fill."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        path = make_run(folder / f"seed-{seed}", "tsn-wr", seed, "tsn.bits=4")
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
        result |= {"scenario": "permuted-mnist", "recipe": "defaults"}  # none to differ from
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def row_of(table: Table, *labels: str) -> tuple[str, ...]:
    return next(r for r in table.rows if r[: len(labels)] == labels)


def test_the_list_names_every_table_and_figure() -> None:
    text = paper.listing()
    for number in range(1, 12):
        assert f"Table {number}" in text
    for number in range(1, 10):
        assert f"igure {number}" in text


@pytest.mark.parametrize("name", list(paper.ENTRIES))
@pytest.mark.parametrize("form", FORMATS)
def test_without_runs_everything_is_not_run(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "results_folder", lambda: None)
    text = paper.show(name, form=form)
    missing = {"five-datasets": "SVHN", "imagenet100": "ImageNet-100"}.get(
        name.removeprefix("matrix-")
    )
    if missing:
        assert f"no data: {missing}" in text and NOT_RUN not in text
    else:
        scenarios = [r for r in paper.table(name).rows if r[0] in ("5 datasets", "Imagenet100")]
        assert all(NOT_RUN not in row for row in scenarios)
        assert (NOT_RUN in text) == (name != "case-study")


@pytest.mark.slow
def test_published_runs_are_shown_by_default(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        result = read_run(runs / f"seed-{seed}").result
        # Of runs that are cut short none is shown; those of the main table are by other settings.
        for table in ("paper-permuted-mnist", "main-mnist", "grid-mnist", "spread-mnist"):
            published.publish(result, tmp_path / table / f"ours-s{seed}.json", "abc")
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    by_default = row_of(paper.table("accuracy"), "p-MNIST", "TSN-wr")
    assert by_default == row_of(paper.table("accuracy", [runs]), "p-MNIST", "TSN-wr")
    capacity = row_of(paper.table("capacity"), "p-MNIST", "TSN-wr")
    assert capacity == row_of(paper.table("capacity", [runs]), "p-MNIST", "TSN-wr")


def test_what_was_measured_on_a_model_is_published_without_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as_digits(runs, monkeypatch)
    measured = Measured(read_run(runs / "seed-0"))
    kept = json.loads(json.dumps(measured.as_published((4, 8))))
    assert measured.tasks is not None
    monkeypatch.setattr(Measured, "tasks", None)  # nothing can be measured anew
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    for measured_on_model in (kept, None):
        result = read_run(runs / "seed-0").result | {"measured_on_model": measured_on_model}
        published.publish(result, tmp_path / "paper-permuted-mnist" / "tsn-wr-s0.json", "abc")
        operations = row_of(paper.table("operations"), "p-MNIST", "8 bit + p, TSN-wr")
        fixed = row_of(paper.table("fixed-point"), "p-MNIST", "8 bit, TSN-wr")
        if measured_on_model is None:
            assert operations[3] == fixed[3] == measured_tables.NO_DATA
        else:
            macs = sum(c.effective_macs for c in measured.operations()) / 3
            assert float(operations[4]) == pytest.approx(64 * macs / 1e6, abs=0.006)
            assert fixed[3] == f"{100 * measured.fixed_point(8):.2f} (1)"


def shipped(result: dict[str, Any], name: str, method: str, *settings: str) -> dict[str, Any]:
    """A result as if it were by a recipe of the package, with some settings changed."""
    chosen = recipe.load(name, method=method, assignments=settings)
    own = {"scenario": chosen.scenario, "method": method, "recipe": name}
    return result | own | {"settings": json.loads(json.dumps(chosen.as_dict()))}


def test_published_runs_beside_the_paper_are_by_recipes_as_they_are(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_run(runs / "seed-0").result
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)

    def add(place: str, *given: str) -> None:
        changed = shipped(result, *given)
        own = changed["settings"].get(changed["method"], {})
        changed["scenario_type"] = own.get("scenario_type", "task-IL")
        published.publish(changed, tmp_path / f"{place}-s0.json", "abc")

    best, letter = "best/split-cifar100", "paper/split-cifar100"
    network = "best/split-cifar100-paper-network"
    add("equal-kilobytes-cifar100/tsn-w24-d0.02", best, "tsn")
    add("equal-kilobytes-cifar100/tsn-w16-d0.02", best, "tsn", "network.width=16")
    add("equal-kilobytes-cifar100/tsn-w24-alone", best, "tsn", "tsn.reference=none")
    add("paper-split-cifar100/tsn", letter, "tsn", "training.precision=tf32")
    add("paper-split-cifar100/tsn-commit", letter, "tsn", "tsn.layer_loss=commit")
    add("paper-bits/split-cifar100-5", letter, "tsn", "tsn.bits=5", "training.precision=tf32")
    add("spread-cifar100/tsn", best, "tsn")
    add("main-cifar100/tsn", network, "tsn")
    add("main-cifar100/wsn", network, "wsn", "wsn.density=0.2")
    add("main-cifar100/wsn-same-codec", network, "wsn", "wsn.density=0.2", "wsn.bits=4")
    add("main-cifar100/naive", network, "naive")
    add("main-cifar100/naive-class-IL", network, "naive", "naive.scenario_type=class-IL")
    add("main-cifar100/naive-own-norms", network, "naive", "naive.norms=per_task")
    table = paper.table("accuracy")
    found = [r for r in table.rows if r[0] == "s-CIFAR100" and r[-1]]
    assert [(r[1], r[6]) for r in found] == [
        ("Naive", "class-IL"),
        ("Naive", "task-IL"),
        ("WSN", "task-IL"),
        ("TSN", "task-IL"),
        ("TSN", "task-IL"),
    ]
    recipes = [r[-1] for r in found if r[1] == "TSN"]
    assert recipes == [f"{letter} with training.precision=tf32", best]  # the paper's own first
    bits = {r[1]: r[3] for r in paper.table("bits").rows if r[0] == "s-CIFAR100"}
    assert bits["5 bits, TSN"] != NOT_RUN and bits["4 bits, TSN"] != NOT_RUN
    assert bits["3 bits"] == NOT_RUN


def test_data_that_stand_in_for_others_are_marked(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_run(runs / "seed-0").result
    others = 'data.datasets=["mnist", "emnist-letters", "fashion-mnist", "cifar10", "notmnist"]'
    changed = shipped(result, "paper/five-datasets", "tsn-wr", others)
    published.publish(changed, tmp_path / "paper-five-datasets" / "tsn-wr-s0.json", "abc")
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    table = paper.table("capacity")
    assert row_of(table, "5 datasets", "TSN-wr")[-1].endswith("STAND-INS: emnist-letters for svhn")
    assert row_of(table, "5 datasets", "TSN")[3] == "no data: SVHN"


def test_published_matrices_leave_out_what_means_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells above the diagonal of tasks with other classes, which a published run names."""
    result = read_run(runs / "seed-0").result
    tasks = [t | {"classes": [f"{i}{c}" for c in "abcd"]} for i, t in enumerate(result["tasks"])]
    changed = shipped(result | {"tasks": tasks}, "best/split-cifar100", "tsn")
    published.publish(changed, tmp_path / "equal-kilobytes-x" / "tsn-s0.json", "abc")
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    rows = paper.table("matrix-split-cifar100").rows
    assert [c == "–" for c in rows[0][1:]] == [False, True, True] and "–" not in rows[2]
    matrix = result["accuracy_matrix"]
    forward = (matrix[0][1] + matrix[0][2] + matrix[1][2]) / 3
    transfer = row_of(paper.table("transfer"), "s-CIFAR100", "TSN")
    assert transfer[5:7] == (f"{forward:.3f} (1)", f"{forward - 0.25:.3f} (1)")


def test_differences_own_nothing_and_are_not_post_pruned(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_run(runs / "seed-0").result
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    own = {"environment": result["environment"] | {"jobs": 12, "device": "cuda"}}
    own["measured_on_model"] = {"operations": [[["fc1", "Linear", 1_000_000, 0.25]]]}
    changed = shipped(result | own, "best/permuted-mnist", "tsn-wr")
    published.publish(changed, tmp_path / "equal-kilobytes-mnist" / "tsn-wr-s0.json", "abc")
    sparsity = row_of(paper.table("sparsity"), "p-MNIST", "TSN-wr")
    assert (sparsity[3], sparsity[5]) == ("–", "–") and sparsity[7] != "–"
    pruned = row_of(paper.table("operations"), "p-MNIST", "8 bit + p, TSN-wr")
    assert pruned[3:5] == ("–", "16.00")  # no Υ to multiply by; counted by the masks
    pruning = {r[1]: r for r in paper.table("post-pruning").rows if r[0] == "p-MNIST"}
    assert pruning["with post-pruning"][3] == NOT_RUN
    size = f"{result['ledger']['file_bytes'] / 1000:.1f} (1)"
    assert pruning["without post-pruning"][5:7] == (size, "0")
    assert row_of(paper.table("capacity"), "p-MNIST", "TSN-wr")[6] == size
    assert row_of(paper.table("memory"), "p-MNIST", "TSN-wr")[8] == size
    times = paper.table("times")
    assert row_of(times, "p-MNIST", "TSN-wr")[7] == "cuda, 12 runs at once"
    assert any("shared their machine" in n for n in times.notes)


def test_masks_of_published_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_run(runs / "seed-0").result
    monkeypatch.setattr(published, "results_folder", lambda: tmp_path)
    place = tmp_path / "paper-permuted-mnist" / "tsn-wr-s0.json"
    published.publish(result, place, "abc")
    kept = paper.table("masks").rows
    assert kept == paper.table("masks", [runs / "seed-0"]).rows and len(kept) == 3
    used, new, reused = map(float, kept[2][3:])
    assert 0 < new < used and reused == pytest.approx(100 - 100 * new / used, abs=0.5)
    for task in result["tasks"]:
        del task["new_share"]  # as in results of before
    published.publish(result, place, "abc")
    assert {r[4:] for r in paper.table("masks").rows} == {(measured_tables.NOT_KEPT,) * 2}
    folder = tmp_path / "with-model"
    shutil.copytree(runs / "seed-0" / "model", folder / "model")
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert paper.table("masks", [folder]).rows == kept


def test_the_numbers_of_the_paper() -> None:
    assert numbers.ACCURACY["tsn"]["permuted-mnist"] == 97.14
    assert numbers.ACCURACY["ada-qpacknet"]["five-datasets"] == 94.1
    assert numbers.CAPACITY["tsn-wr"]["split-cifar100"] == 17.62
    assert numbers.CAPACITY["packnet"]["tiny-imagenet"] == 188.67
    assert numbers.IMAGENET100["tsn-wr"] == (2.47, 77.16)
    assert numbers.FIXED_POINT["permuted-mnist"][4] == 84.08
    for name, values in numbers.OPERATIONS.items():
        four_p, eight_p, _, four, eight, sixteen, floating = values
        assert eight / four == pytest.approx(4, rel=0.01), name
        assert sixteen / eight == pytest.approx(4, rel=0.01), name
        assert 8.9 < floating / eight < 9.6, name
        # "+ p" follows from the sparsity after post-pruning.
        kept = 1 - numbers.SPARSITY[name][1] / 100
        assert eight_p / eight == pytest.approx(kept, abs=0.02), name
        assert four_p / four == pytest.approx(kept, abs=0.02), name


@pytest.mark.slow
def test_accuracy_gives_both_means_with_their_spread(runs: Path) -> None:
    table = paper.table("accuracy", [runs])
    row = row_of(table, "p-MNIST", "TSN-wr")
    accs = [read_run(runs / f"seed-{s}").metric("average_accuracy") for s in (0, 1)]
    mean = sum(a for a in accs if a is not None) / 2 * 100
    assert row[2] == "96.63"
    assert row[4].startswith(f"{mean:.2f} ± ")
    assert row[4].endswith("(2)")
    assert row[5:7] == ("task-IL", "task-IL")
    # Without the task's name: ours, the rule of SupSup, and unknown inputs.
    assert all(cell.endswith("(2)") for cell in row[7:11])
    for method in ("Naive", "CWRStar", "SI", "Replay", "Cumulative"):
        cells = (NOT_RUN, NOT_RUN, "domain-IL")
        assert row_of(table, "p-MNIST", method)[3:6] == cells  # one head over the same ten classes
        assert row_of(table, "s-CIFAR100", method)[5] == "class-IL"
    assert any("Cumulative at 36.52" in n for n in table.notes)


def test_recipes_are_never_mixed(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "seed-0").result | {"recipe": "best/other"}
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    table = paper.table("accuracy", [runs, tmp_path])
    rows = [r for r in table.rows if r[:2] == ("p-MNIST", "TSN-wr")]
    assert [r[4][-3:] for r in rows] == ["(2)", "(1)"]
    assert rows[0][-1] != rows[1][-1]


def test_tables_from_results(runs: Path) -> None:
    result = read_run(runs / "seed-0").result
    capacity = row_of(paper.table("capacity", [runs]), "p-MNIST", "TSN-wr")
    assert capacity[2] == "22.65"
    for place, view in ((3, "paper"), (4, "printed"), (5, "file")):
        mine = 100 * result["capacity"][view]
        assert float(capacity[place].split()[0]) == pytest.approx(mine, abs=3), view
    bits = row_of(paper.table("bits", [runs]), "p-MNIST", "4 bits, TSN-wr")
    assert bits[2] == "96.63"
    assert row_of(paper.table("bits", [runs]), "p-MNIST", "5 bits")[3] == NOT_RUN
    sparsity = row_of(paper.table("sparsity", [runs]), "p-MNIST", "TSN-wr")
    assert (sparsity[2], sparsity[4], sparsity[6], sparsity[7][:3]) == (
        "37.58",
        "41.20",
        "4",
        "4.0",
    )
    transfer = row_of(paper.table("transfer", [runs]), "p-MNIST", "TSN-wr")
    assert transfer[3] == "0.0000 ± 0.0000 (2)"
    memory = row_of(paper.table("memory", [runs]), "p-MNIST", "TSN-wr")
    parts = [float(memory[i].split()[0]) for i in (3, 5, 7)]
    assert sum(parts) == pytest.approx(100 * result["capacity"]["paper"], abs=3)
    times = row_of(paper.table("times", [runs]), "p-MNIST", "TSN-wr")
    assert times[2] == "1244"
    pruning = row_of(paper.table("post-pruning", [runs]), "p-MNIST", "with post-pruning")
    assert pruning[6] == "5"


def measured_as_digits(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the relabeled runs find the data that they were really made from."""
    from tinysubnets import scenarios

    build = scenarios.build
    monkeypatch.setattr(scenarios, "build", lambda name, *a, **k: build("permuted-digits", *a, **k))


def test_what_post_pruning_freed_is_counted_over_all_tasks_and_banks(
    runs: Path, tmp_path: Path
) -> None:
    run = read_run(runs / "seed-0")
    tasks = [dict(t) for t in run.tasks]
    for task, bank, before, after in zip(
        tasks, (0, 1, 0), (0.5, 0.5, 0.6), (0.4, 0.48, 0.6), strict=True
    ):
        task |= {"bank": bank, "owned_before_pruning": before, "owned_after_pruning": after}
    result = run.result | {"tasks": tasks, "free_share": 0.45}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    row = row_of(paper.table("sparsity", [tmp_path / "run"]), "p-MNIST", "TSN-wr")
    assert (row[3][:5], row[5][:5]) == ("39.00", "45.00")  # (0.1 + 0.02) / 2 banks


def test_operations_are_of_the_first_run_that_they_were_counted_on(
    runs: Path, tmp_path: Path
) -> None:
    for seed, measured in ((0, {}), (1, {"operations": [[["fc1", "Linear", 1_000_000, 0.25]]]})):
        result = read_run(runs / f"seed-{seed}").result | {"measured_on_model": measured}
        (tmp_path / f"run-s{seed}").mkdir()
        path = tmp_path / f"run-s{seed}" / "result.json"
        path.write_text(json.dumps(result), encoding="utf-8")
    row = row_of(paper.table("operations", [tmp_path]), "p-MNIST", "float, TSN-wr")
    assert "1.00 multiply-adds" in row[4]


def test_operations_are_counted_from_the_layers(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as_digits(runs, monkeypatch)
    table = paper.table("operations", [runs])
    macs = 64 * 100 + 100 * 100 + 100 * 10
    dense = row_of(table, "p-MNIST", "8 bit, TSN-wr")
    assert dense[2:5] == ("6.5", f"{macs * 64 / 1e6:.2f}", f"{macs * 64 / 1e6:.2f}")
    pruned = row_of(table, "p-MNIST", "8 bit + p, TSN-wr")
    run = read_run(runs / "seed-0")
    owned = 1 - run.result["free_share"]
    assert pruned[3] == f"{macs * 64 * owned / 1e6:.2f}"
    density = sum(t["density"] for t in run.tasks) / 3
    counted = (density * 16400 + 1000) * 64 / 1e6
    assert float(pruned[4]) == pytest.approx(counted, abs=0.02)
    assert "multiply-adds" in row_of(table, "p-MNIST", "float, TSN-wr")[4]


def test_fixed_point_is_measured_on_the_saved_models(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as_digits(runs, monkeypatch)
    table = paper.table("fixed-point", [runs])
    rows = {b: row_of(table, "p-MNIST", f"{b} bit, TSN-wr") for b in (4, 8, 16)}
    values = {b: float(r[3].split()[0]) for b, r in rows.items()}
    full = float(rows[16][4].split()[0])
    assert values[16] == pytest.approx(full, abs=0.5)
    assert values[8] == pytest.approx(full, abs=3)
    assert values[4] <= values[16] + 3
    assert rows[4][2] == "84.08"


def test_without_data_it_says_so(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TINYSUBNETS_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TINYSUBNETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = read_run(runs / "seed-0").result
    result["settings"]["data"]["dataset"] = str(tmp_path / "nothing.npz")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert "no model or data" in paper.show("fixed-point", [folder])


def test_masks_and_matrices(runs: Path, tmp_path: Path) -> None:
    table = paper.table("masks", [runs / "seed-0"], out=tmp_path)
    assert len(table.rows) == 3
    assert table.rows[0][5] == "0.0"  # the first task reuses nothing
    assert {p.suffix for p in tmp_path.iterdir()} == {".svg"}
    matrix = paper.table("matrix-permuted-mnist", [runs], out=tmp_path)
    assert (tmp_path / "permuted-mnist-tsn-wr-matrix.svg").is_file()
    assert [len(r) for r in matrix.rows] == [4, 4, 4]
    run = read_run(runs / "seed-0")
    assert matrix.rows[2][3] == f"{(run.matrix[2][2] or 0) * 100:.1f}"


def test_the_case_study_is_exact() -> None:
    table = paper.table("case-study")
    assert [r[1:] for r in table.rows] == [(b, b) for b in ("384", "152", "220", "220")]


def test_formats() -> None:
    table = Table("x", "A & B", ("a", "b"), (("1 %", "± 2_3"),), ("a < b",), 1)
    assert "1 %" in render(table, "text")
    assert "| 1 % | ± 2_3 |" in render(table, "markdown")
    latex = render(table, "latex")
    assert r"1 \% & $\pm$ 2\_3 \\" in latex
    assert r"\caption{A \& B}" in latex
    assert r"$<$" in latex
    with pytest.raises(SettingError, match="latex"):
        render(table, "html")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SettingError, match="Did you mean 'accuracy'"):
        paper.show("acuracy")


def test_an_installation_says_where_the_published_runs_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinysubnets.cli import main
    from tinysubnets.experiments import published

    assert main(["paper", "times"]) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr(published, "results_folder", lambda: None)
    assert main(["paper", "times"]) == 0
    assert "in a clone of the source" in capsys.readouterr().err


def test_commands(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tinysubnets.cli import main

    assert main(["paper"]) == 0
    assert "fixed-point" in capsys.readouterr().out
    assert main(["paper", "transfer", "--runs", str(runs), "--format", "markdown"]) == 0
    assert "| p-MNIST | TSN-wr | 0.0 |" in capsys.readouterr().out
    assert main(["paper", "nonsense"]) == 2
    assert main(["report", str(runs), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()
