"""All numbers of routing, one command per scenario: learned, chosen on validation data, measured.

    python -m benchmarks.routing_goals cifar-alexnet --data DIR --out DIR
    python -m benchmarks.routing_goals cifar-alexnet --data DIR --out DIR --test

Every variant of a scenario is learned with development seeds and measured on validation data by
every rule. Rows are added to OUT/routing.jsonl as they come; runs and rows that are there are not
made again, and a run that was cut off goes on. The choice is the variant and the rule with the
highest mean, among those that keep accuracy and bytes with the task known (`MOST_LOST`,
`MOST_MORE`). `--test` learns that choice alone with other seeds and measures it on test data, once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.routing import RULES, Learned, tables

DEVELOPMENT_SEEDS, TEST_SEEDS = (100, 101), (0, 1, 2)
MOST_LOST, MOST_MORE = 0.005, 0.02  # of accuracy with the task known; of the dense network's bytes
ROWS = "routing.jsonl"
PLAIN = "plain"  # the variant that others are held to
ONE_PASS, FOUR_PASS = "routing.rotations=one-pass", "routing.rotations=four-pass"


@dataclass(frozen=True)
class Goal:
    """A scenario, and what is tried in it.

    - `recipe`: that of the plain variant.
    - `column`: the number that the choice is made by.
    - `target`: what it is to reach, in words.
    - `variants`: changes of settings by name.
    - `changes`: those that all variants have.
    - `ceilings`: runs of other methods for comparison, as arguments of `tsn run`.
    - `unknown`: another data set, whose images are to be told as unknown.
    """

    recipe: str
    column: str
    target: str
    variants: Mapping[str, Sequence[str]] = field(default_factory=lambda: {PLAIN: ()})
    changes: Sequence[str] = ()
    ceilings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: str | None = None


def _turned(epochs: int, *others: str) -> dict[str, Sequence[str]]:
    """Variants without and with rotations: of as many steps, and of as many epochs."""
    fewer = f"training.epochs={epochs // 4}"
    return {
        PLAIN: (),
        "rotations, as many steps": (FOUR_PASS, fewer),
        "rotations": (FOUR_PASS,),
        "rotations, one pass": (ONE_PASS,),
        **{f"rotations, {o}": (FOUR_PASS, o) for o in others},
    }


ALL_AT_ONCE = {  # one task of all classes
    "all data at once": (
        "--method", "naive", "--set", "data.num_tasks=1", "--set", "data.classes_per_task=100",
    ),
}  # fmt: skip
GOALS: dict[str, Goal] = {
    "permuted-mnist": Goal(
        "best/permuted-mnist",
        "domain-IL",
        "at most 1.0 point below the task known; 0.2 for 16 together",
        unknown="fashion-mnist",
    ),
    "cifar-alexnet": Goal(
        "best/split-cifar100-paper-network",
        "class-IL",
        "50 %",
        _turned(100, "training.weight_decay=1e-4", "tsn.density=0.05"),
        ceilings=ALL_AT_ONCE,
        unknown="cifar10-small",
    ),
    "cifar-resnet18": Goal(
        "best/split-cifar100",
        "class-IL",
        "56 %; 62.8 beyond",
        _turned(50, "tsn.density=0.04"),
        ("network.name=resnet18", "network.width=64", "network.stem=3x3"),
        ALL_AT_ONCE,
        "cifar10-small",
    ),
    "cifar-small-resnet": Goal(
        "best/split-cifar100",
        "class-IL",
        "",
        _turned(50),
        ceilings=ALL_AT_ONCE,
        unknown="cifar10-small",
    ),
    "five-datasets": Goal(
        "best/five-datasets-local", "task found", "97 %", {PLAIN: (), "rotations": (FOUR_PASS,)}
    ),
    "tiny-imagenet": Goal("best/tiny-imagenet", "class-IL", "reported", _turned(20)),
    "tiny-imagenet-20x10": Goal(
        "best/tiny-imagenet",
        "class-IL",
        "reported",
        _turned(20),
        ("data.classes_per_task=10",),
    ),
}


def run(folder: Path, options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """The result of a run, learned now, gone on with, or read where it is finished."""
    done = folder / "result.json"
    if not done.exists():
        command = [sys.executable, "-m", "tinysubnets"]
        if (folder / "config.toml").exists():
            command += ["resume", str(folder)]
        else:
            command += ["run", *arguments, "--out", str(folder), "--device", options.device]
            command += ["--no-report", "--matrix", "last"]
            command += ["--data", options.data] if options.data else []
        subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
    return found


def rows_of(
    name: str,
    variant: str,
    seeds: Iterable[int],
    rules: Sequence[str],
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """The rows of a variant: for each seed one with the task known, and one for every rule."""
    goal, on = GOALS[name], "test" if options.test else "valid"
    known_rows = {_key(r) for r in read(options.out / ROWS)}
    changes = [*goal.changes, *goal.variants[variant], *options.set]
    for seed in seeds:
        folder = options.out / name / f"{variant}-{seed}".replace(" ", "-").replace(",", "")
        sets = [part for change in changes for part in ("--set", change)]
        result = run(folder, options, [goal.recipe, "--seed", str(seed), *sets])
        learned = Learned(str(folder), options.data, options.device)
        about = {"scenario": name, "variant": variant, "seed": seed, "on": on}
        about |= {"task known": learned.known_task(on), "seconds": result["seconds"]}
        about |= {"settings": changes}
        for rule in learned.rules():
            row = about | {"rule": rule}
            if (not rules or rule in rules) and _key(row) not in known_rows:
                yield row | learned.measured(on, RULES[rule], goal.unknown)


def ceilings(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every run that others are compared with; on test data, nothing is chosen by it."""
    goal = GOALS[name]
    for label, arguments in goal.ceilings.items():
        sets = [part for change in (*goal.changes, *options.set) for part in ("--set", change)]
        folder = options.out / name / label.replace(" ", "-")
        result = run(folder, options, [goal.recipe, "--seed", "100", *sets, *arguments])
        accuracy = result["metrics"]["average_accuracy"]
        about = {"scenario": name, "variant": label, "seed": 100, "on": "test", "rule": "ceiling"}
        yield about | {goal.column: accuracy, "seconds": result["seconds"]}


def chosen(name: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The variant and rule with the highest mean on validation data, of those that may be."""
    mine = [r for r in rows if r["scenario"] == name and r["on"] == "valid"]

    def mean(variant: str, rule: str | None, column: str) -> float:
        found = [r[column] for r in mine if r["variant"] == variant and rule in (None, r["rule"])]
        return float(np.mean(found)) if found and None not in found else -np.inf

    best: tuple[float, str, str] | None = None
    for variant, rule in dict.fromkeys((r["variant"], r["rule"]) for r in mine):
        lost = mean(PLAIN, None, "task known") - mean(variant, None, "task known")
        more = mean(variant, rule, "file") - mean(PLAIN, None, "file")
        value = mean(variant, rule, GOALS[name].column)
        if lost <= MOST_LOST and more <= MOST_MORE and (best is None or value > best[0]):
            best = value, variant, rule
    return None if best is None else best[1:]


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, of equal ones the last."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({_key(r): r for r in rows}.values())


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row[k] for k in ("scenario", "variant", "seed", "on", "rule"))


def shown(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of a scenario's rows, and one of batches."""
    columns = ["seed", "on", "task known", "passes", "class-IL", "domain-IL", "task found"]
    columns += ["AUROC, tasks", "file", "bytes per task"]
    return tables([r for r in rows if r["scenario"] == name], ("variant", "rule"), columns)


def main() -> None:
    """Learn and measure one scenario."""
    parser = argparse.ArgumentParser(prog="benchmarks.routing_goals", description=__doc__)
    parser.add_argument("scenario", choices=GOALS)
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and routing.jsonl")
    parser.add_argument("--data", metavar="DIR", help="local folder of data sets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", help="others than 100 101, or 0 1 2")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="of all runs")
    parser.add_argument("--test", action="store_true", help="the choice alone, on test data")
    options = parser.parse_args()
    name, path = options.scenario, options.out / ROWS
    goal = GOALS[name]
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = options.seeds or (TEST_SEEDS if options.test else DEVELOPMENT_SEEDS)
    variants, rules = options.variants or list(goal.variants), []
    if options.test:
        choice = chosen(name, read(path))
        if choice is None:
            parser.error("nothing is measured on validation data yet; run it without --test first.")
        variants, rules = [choice[0]], [choice[1], "entropy (SupSup)"]
    for variant in variants:
        for row in rows_of(name, variant, seeds, rules, options):
            _add(path, row)
    if not options.test and not options.variants:
        for row in ceilings(name, options):
            _add(path, row)
    rows = read(path)
    print(shown(name, rows))
    print(f"wanted: {goal.column} {goal.target}; chosen on validation data: {chosen(name, rows)}")


def _add(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
