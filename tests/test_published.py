"""Published runs: small files, the tables that are made from them, and paired differences."""

from __future__ import annotations

import doctest
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from tiny_runs import make_run
from tinysubnets.errors import RunError
from tinysubnets.experiments import published, recipe
from tinysubnets.experiments.results import effective, grouped, read_run
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.paper import numbers
from tinysubnets.report import figures, page

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

import make_results  # noqa: E402
from benchmarks.evidence import jobs, run  # noqa: E402


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "ours-s3", "tsn-wr", 3)


def test_documents_are_what_the_published_runs_say() -> None:
    """After new results, or a change of a table: `make results`."""
    differ = [p for p, text in make_results.made().items() if p.read_text("utf-8") != text]
    assert differ == []


def test_tables_follow_their_files(finished: Path, tmp_path: Path) -> None:
    """The test above can fail: another accuracy in a file is another table."""
    result = read_run(finished).result
    texts = []
    for accuracy in (0.5, 0.6):
        changed = result | {"metrics": result["metrics"] | {"average_accuracy": accuracy}}
        published.publish(changed, tmp_path / "main-mnist" / "tsn-wr-s3.json", "abc")
        texts.append(make_results.made(tmp_path))
    readme = ROOT / "README.md"
    assert texts[0][readme] != texts[1][readme]
    assert "50.00" in texts[0][readme] and "60.00" in texts[1][readme]


def test_reports_draw_the_published_runs_of_separate_networks(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = read_run(finished)
    assert figures.separate_networks([ours]) == []  # not measured on digits
    monkeypatch.setattr(figures, "files", lambda _: tmp_path)
    points = [{"label": "w8", "bytes": 900, "accuracy": 0.5}]
    points += [{"label": "w16", "bytes": 40_000, "accuracy": 0.7}]
    text = json.dumps({ours.scenario: points})
    (tmp_path / "separate_networks.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(figures, "_is_whole", lambda _: True)
    figure = figures.beside_separate_networks(ours)
    assert figure is not None and figure.caption.endswith(figures.SEPARATE)
    drawn = figure.drawing.file_text()
    assert "separate networks" in drawn and "w16: 70.00 % in 40.0 kB" in drawn
    rival = replace(ours, result=ours.result | {"method": "separate"})
    assert figures.separate_networks([ours, rival]) == []  # which has such networks itself
    monkeypatch.setattr(figures, "_is_whole", lambda _: False)
    assert figures.beside_separate_networks(ours) is None  # fewer tasks take fewer bytes


def test_a_task_without_a_bank_is_none_on_the_page(finished: Path) -> None:
    ours = read_run(finished)
    for banks, told in (([0, NO_BANK], "1 bank"), ([0, 1], "2 banks"), ([NO_BANK], "")):
        tasks = [ours.tasks[0] | {"bank": bank} for bank in banks]
        (group,) = grouped([replace(ours, result=ours.result | {"tasks": tasks})])
        assert page.tiles(group)[-1]["detail"] == told


def test_tasks_taken_for_each_other_are_shown(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    counts = [[30, 10, 0], [0, 39, 1], [0, 0, 2000]]
    names = [t["name"] for t in result["tasks"]]
    sizes = len(names)
    counts = [[*row[:sizes], *[0] * (sizes - 3)] for row in counts[:sizes]]
    counts += [[0] * sizes for _ in range(sizes - len(counts))]
    changed = result | {"without_task": result["without_task"] | {"confusion": counts}}
    for table in ("find-digits", "main-mnist"):
        published.publish(changed, tmp_path / table / "tsn-wr-s3.json", "abc")
    text = make_results.unnamed(published.read_tables(tmp_path))
    assert text.count("taken for") == 1 and "`find-digits/tsn-wr-s3`" in text
    assert f"| {names[0]} (40) | 75.00 | 25.00 |" in text
    assert f"| {names[1]} (40) | 0.00 | 97.50 |" in text


def test_long_runs_are_drawn_along_their_tasks(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_run(finished).result
    for limit in (len(result["tasks"]) + 1, len(result["tasks"])):
        monkeypatch.setattr(published, "LONG", limit)
        path = published.publish(result, tmp_path / "long-mnist" / "ours-s3.json", "abc")
        kept = json.loads(path.read_bytes())["ledger"]
        assert ("tasks" in kept) == (limit == len(result["tasks"]))
    drawn = make_results.made(tmp_path)[make_results.IMAGES / "results-long-mnist-ours.svg"]
    assert "size, kB" in drawn and "weights still free" in drawn


def test_ours_stand_beside_the_next_larger_separate_networks(
    finished: Path, tmp_path: Path
) -> None:
    result = read_run(finished).result
    network = {"network": {"width": 8}}
    for label, method, size, accuracy in (
        ("tsn-w8-d1", "tsn", 100, 0.7),
        ("separate-w8-d1-b1", "separate", 90, 0.2),
        ("separate-w16-d1-b1", "separate", 120, 0.6),
        ("separate-w24-d1-b1", "separate", 300, 0.9),
    ):
        own = {method: {"density": 0.5, "first_density": 0.5}}
        ledger = result["ledger"] | {"file_bytes": size}
        metrics = {"average_accuracy": accuracy, "backward_transfer": None}
        changed = {"method": method, "ledger": ledger, "metrics": result["metrics"] | metrics}
        changed |= {"settings": result["settings"] | network | own}
        changed |= {"tasks": [t | {"bank": NO_BANK} for t in result["tasks"]]}
        path = tmp_path / "equal-kilobytes-cifar100" / f"{label}-s3.json"
        published.publish(result | changed, path, "abc")
    texts = make_results.made(tmp_path)
    (ours,) = (t for t in texts[ROOT / "README.md"].splitlines() if t.startswith("| ours, width 8"))
    assert "| 70.00 | 100 B | +10.00 (120 B) | −20.00 (300 B) |" in ours and ours.endswith("|  |")
    row = next(
        t
        for t in texts[ROOT / "docs" / "measured.md"].splitlines()
        if t.startswith("| `tsn-w8-d1`")
    )
    cells = [c.strip() for c in row.split("|")]
    assert cells[6] == "" and cells[13].endswith("; 0")  # BWT was not measured; no bank at all
    curves = json.loads(texts[make_results.CURVES])[result["scenario"]]
    assert [p["bytes"] for p in curves] == [90, 120, 300]


def test_the_tree_s_results_are_small_and_whole() -> None:
    files = list((ROOT / "results").rglob("*.json*"))
    assert sum(f.stat().st_size for f in files) < published.MAX_BYTES
    for name, runs in published.read_tables(ROOT / "results").items():
        for one in runs:
            where = f"{name}/{one.folder.name}"
            assert one.folder.name.endswith(f"-s{one.seed}") or name.startswith("choose-"), where
            kept = one.result
            assert kept["commit"] and kept["environment"] and kept["ledger"], where
            assert kept["settings"]["scenario"] == one.scenario, where
            assert len(one.matrix) == len(one.tasks), where
            assert all(task["classes"] for task in one.tasks), where


def test_published_runs_are_known_to_be_whole() -> None:
    """By their classes: only a run of all tasks is drawn beside the paper and separate networks."""
    whole = published.read_file(ROOT / "results/equal-kilobytes-mnist/tsn-wr-s0.json")
    long = published.read_file(ROOT / "results/long-mnist/tsn-wr-100-tasks-s0.json")
    assert figures.references([whole]) and figures.separate_networks([whole])
    assert not figures.references([long]) and not figures.separate_networks([long])


def test_a_published_run_says_what_the_run_said(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    path = published.publish(result, tmp_path / "table" / "ours-s3.json", "abc")
    assert path.stat().st_size < 16_000
    (again,) = published.read_tables(tmp_path)["table"]
    whole = read_run(finished)
    assert again.result["commit"] == "abc"
    assert again.settings == whole.settings and again.seed == 3
    assert again.metric("average_accuracy") == pytest.approx(
        whole.metric("average_accuracy"), abs=1e-6
    )
    for view in ("file", "paper", "printed", "worked_example"):
        assert again.capacity(view) == pytest.approx(whole.capacity(view), abs=1e-6)
    assert again.size_bytes == whole.size_bytes
    assert again.routed("task_accuracy") == pytest.approx(whole.routed("task_accuracy"), abs=1e-6)
    assert [t["classes"] for t in again.tasks] == [t["classes"] for t in whole.tasks]
    # Of tasks alone it is known which was taken for which.
    assert again.without_task["confusion"] == whole.without_task["confusion"]
    assert not any("confusion" in task for task in again.tasks)
    path.write_text("{}")
    with pytest.raises(RunError, match=r"ours-s3\.json.*lacks"):
        published.read_tables(tmp_path)


def test_paired_differences_are_a_t_interval() -> None:
    assert doctest.testmod(published).failed == 0
    ones, others = {0: 3.0, 1: 2.5, 2: 4.0, 3: 3.1}, {0: 1.0, 1: 1.5, 2: 1.0, 3: 2.0, 9: 50.0}
    found = published.paired_difference(ones, others)
    gaps = [ones[s] - others[s] for s in range(4)]
    wanted = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert found is not None and found.count == 4 and found.is_clear
    assert found.mean - found.half_width == pytest.approx(wanted.low)
    assert found.mean + found.half_width == pytest.approx(wanted.high)
    unsure = published.paired_difference({0: 1.0, 1: -1.0}, {0: 0.5, 1: 0.0})
    assert unsure is not None and not unsure.is_clear
    single = published.paired_difference({0: 9.0}, {0: 1.0})
    assert single is not None and not single.is_clear  # one seed proves nothing
    assert published.paired_difference({0: 1.0}, {1: 1.0}) is None


def test_bold_is_only_what_is_clearly_better(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result

    def add(label: str, values: list[float]) -> None:
        for seed, value in enumerate(values):
            metrics = result["metrics"] | {"average_accuracy": value}
            changed = result | {"metrics": metrics, "seed": seed}
            published.publish(changed, tmp_path / "main-mnist" / f"{label}-s{seed}.json")

    add("tsn-wr", [0.900, 0.910, 0.905])
    add("better", [0.950, 0.962, 0.954])
    add("luckier", [0.990, 0.880, 0.950])
    add("worse", [0.700, 0.710, 0.705])
    runs = published.read_tables(tmp_path)["main-mnist"]
    assert "| tsn-wr | – | 3 | 0 |" in make_results.costs("mnist", {"main-mnist": runs})
    lines = make_results.described_table("main-mnist", runs).splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert [label for label, line in rows.items() if "**" in line] == ["better"]
    assert "−20.00 ± 0.00" in rows["worse"]


def test_the_main_table_has_a_row_for_each_method(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result

    def add(label: str, values: list[float], **changes: object) -> None:
        for seed, value in enumerate(values):
            metrics = result["metrics"] | {"average_accuracy": value}
            changed = result | {"metrics": metrics, "seed": seed} | changes
            published.publish(changed, tmp_path / "main-mnist" / f"{label}-s{seed}.json")

    dense = {"scenario": "permuted-mnist", "without_task": None}
    add("tsn-wr", [0.900, 0.910, 0.905], scenario="permuted-mnist")
    add("naive", [0.600, 0.610, 0.605], **dense)
    add("naive-domain-IL", [0.400, 0.410, 0.405], **dense)
    add("separate", [0.950, 0.962, 0.954], **dense)
    add("separate-small", [0.990, 0.880, 0.950], **dense)
    for key in ("separate-0", "separate-small-0", "separate-small-1"):
        published.publish(result, tmp_path / "choose-mnist" / f"{key}.json")
    text = make_results.methods("mnist")(published.read_tables(tmp_path))
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = {row[0]: row for row in cells if len(row) == 11}
    measured = [label for label in rows if "†" not in label]
    assert measured == ["method", "---", "naive", "separate", "separate-small", "tsn-wr"]
    valid = 100 * sum(t["valid_accuracy"] for t in result["tasks"]) / len(result["tasks"])
    assert rows["naive"][2:5] == [f"{valid:.2f} ± 0.00", "60.50 ± 0.50", "−30.00 ± 0.00"]
    assert rows["naive"][6:8] == ["", "40.50 ± 0.50"]  # learned so
    routed = 100 * read_run(finished).routed("class-IL", "average_accuracy")
    assert rows["tsn-wr"][6] == f"{routed:.2f} ± 0.00" and rows["tsn-wr"][4] == ""  # found so
    assert rows["separate"][3].startswith("**") and "**" not in rows["separate-small"][3]
    assert rows["naive"][10] == "60.12 (domain-IL)" and rows["tsn-wr"][10] == "96.63 at 22.65 %"
    # What no run was published of stays below it, marked; others are gone.
    assert {"gdumb †", "gem †", "lwf †", "cwr-star †"} < set(rows) and "naive †" not in rows
    assert rows["cwr-star †"][1:] == [
        "1", "", "79.39", "", "0.00", "28.23", "18.68", "398", "112.6", "31.31 (one head)"
    ]  # fmt: skip
    assert "measured before" in text and "Standard deviations" not in text
    trials = {row[0]: row[1:3] for row in cells if len(row) == 5}
    assert trials["separate"] == ["1", "3"] and trials["separate-small"] == ["2", "3"]
    assert trials["naive-domain-IL"] == ["–", "3"]


def test_spreads_of_start_and_data_are_told_apart(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result

    def add(place: str, seed: int, value: float) -> None:
        metrics = result["metrics"] | {"average_accuracy": value}
        changed = result | {"metrics": metrics, "seed": seed, "scenario": "permuted-mnist"}
        published.publish(changed, tmp_path / f"{place}-s{seed}.json")

    for number, value in enumerate((0.90, 0.92, 0.94)):
        add("main-mnist/tsn-wr", number, value)
        add("spread-mnist/tsn-wr-one-order", number, 0.9 + value / 100)
        add(f"spread-mnist/tsn-wr-one-start-data{number}", 0, 0.9 + value / 10)
    tables = published.read_tables(tmp_path)
    assert list(published.by_label(tables["spread-mnist"])) == [
        "tsn-wr-one-order",
        "tsn-wr-one-start",
    ]
    line = make_results.spread_apart("mnist", tables)
    assert line in make_results.methods("mnist")(tables)
    assert "2.00 (all that a seed draws; 3 runs), 0.02 (initial values" in line
    assert "0.20 (permutations and validation images, one start; 3 runs)" in line
    told = make_results.everything(tables)
    assert "### What a seed draws, apart: permuted MNIST" in told


def test_runs_that_do_not_know_the_task_are_not_compared_with_those_that_do(
    finished: Path, tmp_path: Path
) -> None:
    result = read_run(finished).result
    for label, kind in (("tsn-wr", "task-IL"), ("wsn", "task-IL"), ("naive-class-IL", "class-IL")):
        changed = result | {"scenario_type": kind}
        published.publish(changed, tmp_path / "main-mnist" / f"{label}-s3.json")
    runs = published.read_tables(tmp_path)["main-mnist"]
    table = make_results.group_table(runs, make_results.DESCRIBED["main-mnist"])
    differences = {
        line.split("`")[1]: line.split("|")[5].strip() for line in table.splitlines()[2:]
    }
    assert differences == {"tsn-wr": "", "wsn": "+0.00", "naive-class-IL": ""}


def test_transfer_is_told_where_tasks_were_learned_alone(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    for label, value in (("tsn-w8-d0.05", 0.7), ("tsn-w8-alone", 0.6), ("tsn-w16-d0.05", 0.9)):
        metrics = result["metrics"] | {"average_accuracy": value, "forward_transfer": None}
        own = {"network": {"width": 8}, "tsn": {"density": 0.1, "first_density": 0.3}}
        changed = {"method": "tsn", "metrics": metrics, "settings": result["settings"] | own}
        place = tmp_path / "equal-kilobytes-cifar100" / f"{label}-s3.json"
        published.publish(result | changed, place, "abc")
    tables = published.read_tables(tmp_path)
    table = make_results.everything(tables)
    cells = {
        line.split("`")[1]: [c.strip() for c in line.split("|")][7:9]
        for line in table.splitlines()
        if line.startswith("| `")
    }
    assert cells["tsn-w8-d0.05"] == ["–", "+10.00"] and cells["tsn-w8-alone"] == ["–", ""]
    assert cells["tsn-w16-d0.05"] == ["–", ""]
    readme = make_results.equal_kilobytes(tables).splitlines()
    assert [line.endswith("| +10.00 |") for line in readme[2:]].count(True) == 1


def test_ablations_have_the_codec_and_what_does_not_apply(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    published.publish(result, tmp_path / "ablation-mnist" / "whole-s3.json", "abc")
    text = make_results.everything(published.read_tables(tmp_path))
    ledger = result["ledger"]
    uncoded = ledger["file_bytes"] + (ledger["raw_mask_bits"] - ledger["total"]["masks"]) / 8
    assert uncoded > ledger["file_bytes"]
    row = next(line for line in text.splitlines() if line.startswith("| `masks-uncoded`"))
    assert f"as `whole` |  | {uncoded / 1000:.1f} |" in row
    assert "| `folding` | not applicable: the network has no norms |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_bits_and_banks_are_shown_task_by_task(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    for seed, bank in ((3, 0), (4, NO_BANK)):
        tasks = [t | {"bits": seed, "bank": bank, "new_share": seed / 100} for t in result["tasks"]]
        changed = result | {"seed": seed, "tasks": tasks}
        published.publish(changed, tmp_path / "unlike-tasks" / f"all-s{seed}.json", "abc")
    text = make_results.everything(published.read_tables(tmp_path))
    assert "| `all` | permutation-1 | 3, 4 | 0, none | 3.50 ± 0.71 |" in text


def test_a_long_run_says_what_its_first_tasks_weigh() -> None:
    run = published.read_file(ROOT / "results/long-mnist/tsn-wr-100-tasks-s0.json")
    line = make_results.along(run)
    first = run.tasks[:50]
    accuracy = 2 * sum(t["final_accuracy"] for t in first)
    size = sum(run.result["ledger"]["tasks"][t["name"]]["total"] for t in first) / 8000
    assert f"the first 50 have {accuracy:.2f} % in {size:.1f} kB" in line
    assert line in (ROOT / "docs" / "LOG.md").read_text(encoding="utf-8")
    short = {k: v for k, v in run.result["ledger"].items() if k != "tasks"}
    assert make_results.along(replace(run, result=run.result | {"ledger": short})) == ""


def test_operations_are_shown_in_thousands(finished: Path, tmp_path: Path) -> None:
    """And not at all where differences were counted without what they are added to."""
    result = read_run(finished).result
    kept = {"operations": [[["fc1", "Linear", 6400, 0.25]]], "with_references": True}
    kept["latency"] = {k: {"ms": 0.5, "bytes": 1000} for k in ("task", "dense")}
    for label, bank, flag in (("new", NO_BANK, True), ("old", NO_BANK, False), ("own", 0, False)):
        tasks = [t | {"bank": bank} for t in result["tasks"]]
        found = {"tasks": tasks, "measured_on_model": kept | {"with_references": flag}}
        place = tmp_path / "equal-kilobytes-x" / f"{label}-s3.json"
        published.publish(result | found, place, "abc")
    lines = make_results.energy(published.read_tables(tmp_path)).splitlines()[2:]
    rows = [[c.strip() for c in line.split("|")] for line in lines]
    assert [row[2:4] for row in rows] == [["6.4", "1.6"], ["–", "–"], ["6.4", "1.6"]]
    assert all(row[9].endswith("cores") for row in rows)


def test_the_front_page_says_what_was_missed(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    labels = ("tsn-wr", "tsn-wr-no-routing", "separate-w100-d0.03-b2")
    for sizes, word in (
        ((31_000, 33_000, 37_000), "missed"),
        ((31_000, 31_900, 37_000), "reached"),
    ):
        for label, size, value in zip(labels, sizes, (0.97, 0.98, 0.99), strict=True):
            metrics = result["metrics"] | {"average_accuracy": value}
            changed = {"metrics": metrics, "ledger": result["ledger"] | {"file_bytes": size}}
            changed |= {"method": "separate"} if label.startswith("separate") else {}
            place = tmp_path / "equal-kilobytes-mnist" / f"{label}-s3.json"
            published.publish(result | changed, place, "abc")
        text = make_results.headline(published.read_tables(tmp_path))
        assert "- 97.6 % in 32 kB: by the recipe, " in text
        assert "finds the task, missed, 97.00 % in 31.0 kB; without" in text
        assert f"without that, {word}, 98.00 % in {sizes[1] / 1000:.1f} kB, at a density" in text
        assert "the paper's own network" not in text  # no run of it
        (rival,) = (n for n in text.splitlines() if n.startswith("| ten separate networks"))
        assert "| 99.00 |" in rival and "| 37.0 kB |" in rival


@pytest.mark.parametrize(
    ("accuracy", "size", "word"), [(0.98, 1000, "reached"), (0.97, 1000, "missed")]
)
def test_the_aim_for_the_paper_s_network_is_told(
    accuracy: float, size: int, word: str, finished: Path, tmp_path: Path
) -> None:
    result = read_run(finished).result
    for label in (
        "tsn-wr",
        "tsn-wr-no-routing",
        "separate-w100-d0.03-b2",
        "tsn-wr-paper-network-signs",
    ):
        changed = {"metrics": result["metrics"] | {"average_accuracy": accuracy}}
        changed |= {"capacity": result["capacity"] | {"file": 0.08}}
        published.publish(
            result | changed, tmp_path / "equal-kilobytes-mnist" / f"{label}-s3.json", "abc"
        )
    text = make_results.headline(published.read_tables(tmp_path))
    wanted = f"- 97.6 % in 9 % of the paper's own network: {word}, {100 * accuracy:.2f} % in 8.0 %"
    assert wanted in text


def test_samples_are_apart_in_the_paper_s_view(finished: Path, tmp_path: Path) -> None:
    """The paper prints TSN's capacity without them."""
    result = read_run(finished).result
    bits, weights = result["ledger"]["total"], result["ledger"]["num_weights"]
    kept = result["ledger"] | {"total": bits | {"memory": 32 * weights}}
    settings = result["settings"] | {"tsn": result["settings"]["tsn"] | {"memory": "samples"}}
    changed = {
        "ledger": kept,
        "settings": settings,
        "capacity": result["capacity"] | {"paper": 1.25},
    }
    published.publish(result | changed, tmp_path / "paper-permuted-mnist" / "tsn-s3.json", "abc")
    (run,) = published.read_tables(tmp_path)["paper-permuted-mnist"]
    assert make_results.paper_view([run]) == "25.0; 125.0 with samples"
    published.publish(result, tmp_path / "other" / "tsn-s3.json", "abc")
    (plain,) = published.read_tables(tmp_path)["other"]
    assert "samples" not in make_results.paper_view([plain])


def test_runs_by_the_paper_s_letter_that_cannot_be_are_told(finished: Path, tmp_path: Path) -> None:
    assert "| five-datasets | tsn | 0 | no data: SVHN |" in make_results.letter({})
    result = read_run(finished).result
    place = tmp_path / "paper-five-datasets" / "tsn-wr-stand-ins-s3.json"
    published.publish(result, place, "abc")
    text = make_results.letter(published.read_tables(tmp_path))
    row = next(line for line in text.splitlines() if "tsn-wr, **stand-ins** | 1 |" in line)
    assert f"| {result['ledger']['file_bytes'] / 1000:.1f} |" in row


def test_jobs_vary_the_start_and_the_data_apart() -> None:
    drawn: dict[str, set[tuple[int, str]]] = {}
    for job in (j for j in jobs.LISTS["main-mnist"]() if j.table == "spread-mnist"):
        data = next(s for s in job.settings if s.startswith("data.seed="))
        label = re.sub(r"(-data\d+)?-s\d+$", "", job.name)
        drawn.setdefault(label, set()).add((job.seed, data))
    assert drawn == {
        "tsn-wr-one-order": {(seed, "data.seed=0") for seed in jobs.TEST_SEEDS},
        "tsn-wr-one-start": {(0, f"data.seed={seed}") for seed in jobs.TEST_SEEDS},
    }


def test_jobs_of_the_paper_s_widths_of_codes() -> None:
    """With the runs by the recipes themselves they fill its Table 6."""
    made = {j.name for j in jobs.LISTS["paper-bits"]()}
    for scenario, widths in numbers.BIT_WIDTHS.items():
        own = recipe.load(f"paper/{scenario}").learner["bits"]
        wanted = {f"{scenario}-{bits}-bits-s0" for bits in widths if bits != own}
        assert {name for name in made if name.startswith(scenario)} == wanted


@pytest.mark.slow
def test_every_job_is_a_run_that_can_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    first = lambda data: {label: row.values[0] for label, row in jobs.rows_of(data).items()}  # noqa: E731
    monkeypatch.setattr(jobs, "chosen", first)
    monkeypatch.setattr(jobs, "check_tried", lambda table, label: None)
    keys = set()
    for name, made in jobs.LISTS.items():
        for job in made():
            assert job.key not in keys, f"{name}: {job.key} twice"
            keys.add(job.key)
            loaded = recipe.load(job.recipe, method=job.method, assignments=job.settings)
            assert loaded.method == job.method and job.seconds > 0
            is_search = job.table.startswith("choose-")
            assert (job.seed >= jobs.DEVELOPMENT_SEED) == is_search, job.key


@pytest.mark.slow
def test_jobs_are_run_once_and_their_results_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("data.num_tasks=2", "data.train_limit=60", "data.test_limit=20", "training.epochs=1")
    small += ("network.hidden=[20]", "pruning.iterations=1")
    good = jobs.Job("grid-x", "ours-s1", "best/permuted-digits", "tsn-wr", 1, small)
    none = ("data.num_tasks=0",)
    bad = jobs.Job("grid-x", "bad-d0.2-s1", "best/permuted-digits", "tsn-wr", 1, none)
    monkeypatch.setitem(jobs.LISTS, "grid", lambda: iter([good, bad]))
    options = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    bundle = tmp_path / "bundle.jsonl"
    command = ["run.py", "run", "grid", *options, "--bundle", str(bundle), "--device", "cpu"]
    command += ["--commit", "abc", "--jobs", "2"]
    monkeypatch.setattr(sys, "argv", command)
    assert run.main() == 1  # one failed
    path = tmp_path / "results" / "grid-x" / "ours-s1.json"
    first = path.read_bytes()
    assert json.loads(first)["commit"] == "abc"
    assert json.loads(first)["environment"]["jobs"] == 2  # its seconds are not of a run alone
    (failure,) = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert json.loads(failure)["key"] == "grid-x/bad-d0.2-s1" and "num_tasks" in failure
    logs = {p.name for p in (tmp_path / "work" / "grid-x").glob("*.log")}
    assert logs == {"ours-s1.log", "bad-d0.2-s1.log"}
    capsys.readouterr()
    monkeypatch.setitem(jobs.LISTS, "grid", lambda: iter([good]))
    assert run.main() == 0
    assert "0 of 1 runs to do" in capsys.readouterr().out and path.read_bytes() == first
    path.unlink()  # as if it had been cut off between its end and this
    assert run.main() == 0 and path.read_bytes() == first
    monkeypatch.setattr(
        sys, "argv", ["run.py", "unpack", str(bundle), "--results", str(tmp_path / "elsewhere")]
    )
    assert run.main() == 0
    there = tmp_path / "elsewhere" / "grid-x" / "ours-s1.json"
    assert json.loads(there.read_bytes()) == json.loads(first)
    assert (tmp_path / "elsewhere" / "failures.jsonl").read_text() == failure + "\n"


def test_the_dial_with_the_best_validation_accuracy_is_chosen(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jobs, "RESULTS", tmp_path)
    result = read_run(finished).result
    row, places = jobs.rows_of("mnist")["wsn"], []
    for number, value in enumerate((0.5, 0.9, 0.7, 0.6)):
        density = float(row.values[number].partition("=")[2])
        metrics = result["metrics"] | {"average_accuracy": value}
        changed = result | {"metrics": metrics, "measured_on": ["valid"]}
        changed |= {"settings": result["settings"] | {"wsn": {"density": density}}}
        places.append(tmp_path / f"choose-mnist/wsn-{number}.json")
        assert jobs.chosen("mnist") == {}  # not before all were tried
        published.publish(changed, places[-1])
    best = row.values[1]
    assert jobs.chosen("mnist") == {"wsn": best}
    run.choose("mnist", tmp_path)
    assert f"wsn: {best}: 90.00 % on validation data, chosen" in capsys.readouterr().out
    # No row of the table is run by its recipe's settings because nothing was chosen.
    monkeypatch.setattr(sys, "argv", ["run.py", "run", "main-mnist", "--dry-run"])
    with pytest.raises(SystemExit, match="no value of naive is chosen"):
        run.main()
    tried = {label: row.values[0] for label, row in jobs.rows_of("mnist").items()}
    monkeypatch.setattr(jobs, "chosen", lambda data: tried | {"wsn": best})
    run.main()
    line = next(t for t in capsys.readouterr().out.splitlines() if "main-mnist/wsn-s0 " in t)
    assert best in line.split()
    first, second = (path.read_bytes() for path in places[:2])
    places[0].write_bytes(second)
    with pytest.raises(SystemExit, match=r"wsn-0.json is of wsn.density=0.1, .* that of 0.035"):
        run.choose("mnist", tmp_path)
    places[0].write_bytes(first)
    published.publish(result, tmp_path / "choose-mnist" / "si-0.json")
    with pytest.raises(SystemExit, match="measured on test data"):
        run.choose("mnist", tmp_path)


def test_runs_of_other_settings_are_no_seeds_of_one_row(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    other = result["settings"] | {"training": result["settings"]["training"] | {"lr": 0.5}}
    for seed, settings in ((0, result["settings"]), (1, other)):
        changed = result | {"seed": seed, "settings": settings}
        published.publish(changed, tmp_path / "main-x" / f"ours-s{seed}.json")
    (runs,) = published.read_tables(tmp_path).values()
    with pytest.raises(RunError, match=r"ours-s0 and ours-s1 share a label and differ in training"):
        published.by_label(runs)


def test_no_run_of_a_row_hides_what_two_others_differ_in(finished: Path, tmp_path: Path) -> None:
    result = read_run(finished).result
    training = dict(result["settings"]["training"])
    without = {k: v for k, v in training.items() if k != "lr"}  # of before there was the setting
    for seed, own in ((0, without), (1, training), (2, training | {"lr": 0.5})):
        settings = result["settings"] | {"training": own}
        changed = result | {"seed": seed, "settings": settings}
        published.publish(changed, tmp_path / "main-x" / f"ours-s{seed}.json")
    (runs,) = published.read_tables(tmp_path).values()
    assert len(published.by_label(runs[:2])["ours"]) == 2
    with pytest.raises(RunError, match=r"ours-s1 and ours-s2 share a label and differ in training"):
        published.by_label(runs)
    other = result | {"seed": 3, "measured_on": ["valid"]}
    published.publish(other, tmp_path / "main-y" / "ours-s3.json")
    published.publish(result | {"seed": 0}, tmp_path / "main-y" / "ours-s0.json")
    with pytest.raises(RunError, match="differ in measured_on"):
        published.by_label(published.read_tables(tmp_path)["main-y"])


def test_the_tree_s_own_runs_stand_beside_the_paper_s() -> None:
    found = published.final_runs(make_results.RESULTS)
    methods = {r.method for r in found}
    assert {"tsn-wr", "tsn", "wsn", "packnet", "ewc"} <= methods


def test_rungs_of_a_ladder_matter_where_there_is_one() -> None:
    rungs = {"tsn": {"rungs": ["head"], "density": 0.1}, "network": {"name": "mlp"}}
    assert effective(rungs) == {"tsn.density": 0.1, "network.name": "mlp"}
    for more in ({"tsn": rungs["tsn"] | {"price": 0.1}}, {"network": {"base": "frozen"}}):
        assert effective(rungs | more)["tsn.rungs"] == ["head"]
