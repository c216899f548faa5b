"""Write the tables and pictures of README and docs from the published runs in `results/`.

    python scripts/make_results.py                                     # `make results`
    python scripts/make_results.py --check                             # fails where a file differs
    python scripts/make_results.py publish TABLE RUN [RUN …]           # run folders → results/TABLE

Text between `<!-- results: NAME -->` and `<!-- end of results -->` is replaced. A run folder is
published as `<its folder's name>.json`; the folder's name should end in `-s<seed>`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks import pretrained_table  # noqa: E402

from tinysubnets import scenarios  # noqa: E402
from tinysubnets.experiments import published  # noqa: E402
from tinysubnets.experiments import recipe as recipes  # noqa: E402
from tinysubnets.experiments.results import Run, Spread, read_run  # noqa: E402
from tinysubnets.experiments.tables import size_text  # noqa: E402
from tinysubnets.model.subnet import NO_BANK  # noqa: E402
from tinysubnets.paper import measures  # noqa: E402
from tinysubnets.paper.numbers import ACCURACY, CAPACITY, NO_DATA  # noqa: E402

RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "images"
CURVES = ROOT / "src" / "tinysubnets" / "report" / "separate_networks.json"
DOCUMENTS = ("README.md", "docs/measured.md", "docs/LOG.md", "docs/pretrained.md")
BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
Tables = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Described:
    """How a table of published runs is shown.

    - `title`, `note`: over it and below it.
    - `reference`: the label that differences are taken to; none where empty.
    - `has_picture`: whether accuracy against bytes is drawn.
    - `curves`: names of curves, by the beginning of the labels that they join.
    - `is_long`: whether the first run of each label is drawn along its tasks.
    - `has_tasks`: whether bits, banks and own weights of every task are shown.
    - `not_applicable`: ingredients that were not taken away, and why; with it, what masks would
      take without their codec is a row too.
    """

    title: str
    note: str = ""
    reference: str = ""
    has_picture: bool = False
    curves: Mapping[str, str] = field(default_factory=dict)
    is_long: bool = False
    has_tasks: bool = False
    not_applicable: Mapping[str, str] = field(default_factory=dict)


_TEST = "Settings chosen on validation data with development seeds, measured once on test seeds."
_ALONE = "Each changed alone in the recipe `whole`, nothing else tuned to it."
_SPREAD = (
    "`tsn-wr` of the main table. `one-order`: all runs have one draw of the data (class order or "
    "permutations, validation images), and each its own start (initial values, batches). "
    "`one-start`: all runs have one start, and each its own draw of the data."
)
DESCRIBED = {
    "equal-kilobytes-mnist": Described(
        "Equal kilobytes, permuted MNIST",
        f"{_TEST} Except `tsn-wr-no-routing`: it was added, with a density by bytes alone, after "
        "test accuracy of `tsn-wr` had been seen. Permuted inputs have nothing in common, and no "
        "task of ours refers to another: `separate` with our network, density and bits would be "
        "the same runs.",
        "tsn-wr",
        True,
    ),
    "equal-kilobytes-cifar100": Described(
        "Equal kilobytes, split CIFAR-100",
        f"{_TEST} Chosen on seven tasks of one development seed. w: the network's width, d: the "
        "density (of a task's difference to the one before, or of a separate network), b: bits. "
        "`tsn-w16-alone` is the same recipe without the others: each task learned as the first; "
        "*transfer* is how far tasks in the sequence are above that.",
        "tsn-w16-d0.02",
        True,
        {"tsn-w": "ours", "separate-": "separate networks"},
    ),
    "find-five-datasets": Described(
        "Whose image is it? Five data sets",
        "MNIST, EMNIST letters A to J for SVHN, Fashion-MNIST, whole CIFAR-10 and small notMNIST, "
        "by a network for a CPU core and three epochs: how often the task is found is the "
        "question, not accuracy. The rule was chosen on validation data with two development "
        "seeds, and measured once on whole test data. `…-12000-images`: learned from 12,000 images "
        "of each data set.",
    ),
    "paper-permuted-mnist": Described("The paper's protocol, permuted MNIST", "", "tsn-wr"),
    "paper-split-cifar100": Described("The paper's protocol, split CIFAR-100", "", "tsn-wr"),
    "paper-five-datasets": Described("The paper's protocol, five data sets"),
    "paper-tiny-imagenet": Described("The paper's protocol, Tiny-ImageNet"),
    "paper-bits": Described(
        "The paper's protocol with codes of other widths", "TSN-wr, one seed: its Table 6."
    ),
    "main-mnist": Described(
        "Every method at its best, permuted MNIST",
        f"{_TEST} All methods have the paper's network, 784-100-100, and 10 epochs a task; "
        "validation accuracy chose the value of each one's main dial, whatever its bytes. "
        "`tsn-wr-signs`: weights chosen by their size and stored as signs, as in "
        "`best/permuted-mnist`. `separate`: ten networks, compressed as ours are; "
        "`separate-small`: the same of half the width, in 4 bits. `…-same-codec`: stored by our "
        "codec, weights in 4 bits and task-specific parameters rounded; WSN also with our "
        "densities by layer. Ada-QPackNet failed at first: the density that was chosen with four "
        "tasks left no room for ten. Its dial ends at 0.1 since.",
        "tsn-wr",
        True,
    ),
    "main-cifar100": Described("Every method at its best, split CIFAR-100", _TEST, "tsn-wr", True),
    "spread-mnist": Described("What a seed draws, apart: permuted MNIST", _SPREAD),
    "spread-cifar100": Described("What a seed draws, apart: split CIFAR-100", _SPREAD),
    "curves-mnist": Described(
        "Curves over densities, permuted MNIST",
        "Values of the main dial, other settings as in the table of every method at its best, on "
        "test seed 0: density 0.02, 0.035, 0.07 and 0.15 of `tsn-wr`, 0.035, 0.1, 0.2 and 0.5 of "
        "`wsn`, 0.05 and 0.1 of `packnet`, whose other values, and methods, have not run.",
        "",
        True,
        {"tsn-wr": "TSN-wr", "wsn": "WSN", "packnet": "PackNet"},
    ),
    "curves-cifar100": Described("Curves over densities, split CIFAR-100", "", "", True),
    "blind-transfer": Described("CIFAR-100's recipes unchanged on Tiny-ImageNet, 20 × 10"),
    "unlike-tasks": Described(
        "Banks and bit-widths, each switched off, on unlike tasks", "", "all", has_tasks=True
    ),
    "ablation-mnist": Described(
        "What each ingredient is worth, permuted MNIST",
        f"{_ALONE} `scores`: weights chosen by trained scores, as in the paper, not by size.",
        "whole",
        not_applicable={
            "folding": "the network has no norms",
            "augmentation": "permuted pixels have no neighbors",
        },
    ),
    "ablation-cifar100": Described(
        "What each ingredient is worth, split CIFAR-100",
        _ALONE,
        "whole",
        not_applicable={"folding": "no setting switches it off"},
    ),
    "long-mnist": Described(
        "Permuted MNIST, a hundred tasks",
        "By `best/permuted-mnist`, on a CPU core with other work beside. Each task has a bank of "
        "its own, so that nothing runs out. BWT is left out where not all earlier tasks were "
        "measured after each; all tasks were as accurate at the end as when they were learned.",
        is_long=True,
    ),
    "long-cifar100": Described("Split CIFAR-100 in twenty tasks", _TEST, is_long=True),
    "grid-mnist": Described(
        "What scores start from × when weights are quantized",
        "Permuted MNIST by `paper/permuted-mnist` and TSN-wr, cut to 5 epochs by a cosine, 20,000 "
        "images and no layer-wise loss; all ten tasks, 5,000 test images, one CPU core with other "
        "work beside, so that seconds mean nothing.",
        "continue-every-step",
    ),
}


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    rule = ["---"] * len(headings)
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, rule, *rows))


def spread(runs: Sequence[Run], measure: Callable[[Run], float | None], digits: int = 2) -> str:
    """Mean and deviation over runs; empty where nothing was measured."""
    return mean_of([v for v in map(measure, runs) if v is not None], digits)


def mean_of(values: Sequence[float], digits: int = 2) -> str:
    """Mean and deviation; empty where there are no values."""
    shown = Spread.of(values).show(digits).rpartition(" (")[0] if values else ""
    return shown.replace("-", "−")


def percent_right(run: Run) -> float:
    """A run's average accuracy in %."""
    return 100 * (run.metric("average_accuracy") or 0)


def routed(*path: str) -> Callable[[Run], float | None]:
    """A number of a run without the task's name, in %."""
    return lambda run: _percent(run.routed(*path))


def share(view: str) -> Callable[[Run], float | None]:
    """A view of a run's size in %."""
    return lambda run: None if run.capacity(view) is None else 100 * (run.capacity(view) or 0)


def ledger_share(part: str) -> Callable[[Run], float | None]:
    """A line of a run's ledger in % of the dense weights."""

    return lambda run: _percent(measures.ledger_share(run, part))


def paper_view(runs: Sequence[Run]) -> str:
    """The paper's way of counting in %: what it prints leaves the samples out that TSN keeps."""
    whole = share("paper")
    if any(r.setting_of("tsn", "memory") != "samples" for r in runs):
        return spread(runs, whole, 1)
    samples = ledger_share("memory")
    without = spread(runs, lambda r: (whole(r) or 0) - (samples(r) or 0), 1)
    return f"{without}; {spread(runs, whole, 1)} with samples"


def group_table(runs: Sequence[Run], described: Described) -> str:
    """Validation and test accuracy, differences and size of every label, over its seeds."""
    groups = published.by_label(runs)
    base = groups.get(described.reference, [])
    has_alone = any(alone(label, groups) for label in groups)
    rows: list[tuple[str, ...]] = []
    for label, members in groups.items():
        difference = ahead(members, base) if label != described.reference else None
        transfer = ahead(members, alone(label, groups))
        accuracy = spread(members, percent_right)
        clearly_best = bool(difference and difference.is_clear and difference.mean > 0)
        rows.append(
            (
                f"`{label}`",
                str(len(members)),
                spread(members, published.valid_accuracy),
                f"**{accuracy}**" if clearly_best else accuracy,
                shown(difference),
                spread(members, lambda r: _percent(r.metric("backward_transfer"))),
                *((_forward(members), shown(transfer)) if has_alone else ()),
                spread(members, kilobytes, 1),
                *(spread(members, share(view), 1) for view in ("file", "paper", "printed")),
                *(spread(members, ledger_share(part), 1) for part in ("codes", "masks")),
                _bits(members),
                spread(members, lambda r: float(r.result.get("seconds") or 0), 0),
            )
        )
    heads = ["run", "n", "validation %", "test %"]
    heads += [f"− `{described.reference}`, 95 %" if base else "difference"]
    heads += ["BWT", *(("FWT", "transfer, 95 %") if has_alone else ())]
    heads += ["kB", "file %", "paper %", "printed %", "codes %", "masks %", "bits; banks"]
    if described.not_applicable:
        if base:
            rows.append(("`masks-uncoded`", *_uncoded(base, described.reference)))
        rows += [(f"`{k}`", f"not applicable: {v}") for k, v in described.not_applicable.items()]
    full = [(*row, *[""] * (len(heads) + 1 - len(row))) for row in rows]
    return lines_of([*heads, "seconds"], full)


def ahead(ones: Sequence[Run], others: Sequence[Run]) -> published.Difference | None:
    """How far runs are above others, seed by seed; None where both are not to be compared.

    A run that knows the task is not compared with one that does not.
    """
    if not ones or not others or ones[0].scenario_type != others[0].scenario_type:
        return None
    return published.paired_difference(*map(published.accuracies, (ones, others)))


def shown(difference: published.Difference | None) -> str:
    """A difference, or nothing."""
    return "" if difference is None else str(difference)


def alone(label: str, groups: Mapping[str, Sequence[Run]]) -> Sequence[Run]:
    """The runs of a label's recipe in which each task is learned without the others, if any.

    `tsn-w16-alone` is that of every `tsn-w16-d…`: the density of differences says nothing there.
    """
    names = (f"{label}-alone", re.sub(r"-d[\d.]+$", "-alone", label))
    return next((groups[n] for n in names if n in groups and n != label), ())


def _forward(runs: Sequence[Run]) -> str:
    """FWT, which is not defined where all tasks have different classes."""
    return spread(runs, lambda r: _percent(r.metric("forward_transfer"))) or "–"


def kilobytes(run: Run) -> float:
    """What a run's file weighs."""
    return (run.size_bytes or 0) / 1000


def _uncoded(runs: Sequence[Run], label: str) -> tuple[str, ...]:
    """What the same models would weigh with one bit of mask per weight and task."""

    def size_bytes(run: Run) -> float:
        ledger = run.result["ledger"]
        return (run.size_bytes or 0) + (ledger["raw_mask_bits"] - ledger["total"]["masks"]) / 8

    def of_dense(run: Run) -> float:
        return 100 * size_bytes(run) / (4 * run.result["ledger"]["num_weights"])

    same = (str(len(runs)), "", "", f"as `{label}`", "")
    return (*same, spread(runs, lambda r: size_bytes(r) / 1000, 1), spread(runs, of_dense, 1))


def task_table(runs: Sequence[Run]) -> str:
    """Bit-width, bank, own weights and accuracy of every task, over the seeds of each label."""
    rows = []
    for label, members in published.by_label(runs).items():
        for place, first in enumerate(members[0].tasks):
            tasks = [r.tasks[place] for r in members]
            banks = ("none" if t.get("bank") == NO_BANK else str(t.get("bank")) for t in tasks)
            own = [100 * t["new_share"] for t in tasks if t.get("new_share") is not None]
            accuracy = [100 * t["final_accuracy"] for t in tasks]
            rows.append(
                (
                    f"`{label}`",
                    first["name"],
                    ", ".join(str(t.get("bits")) for t in tasks),
                    ", ".join(banks),
                    mean_of(own),
                    mean_of(accuracy),
                )
            )
    return lines_of(("run", "task", "bits", "bank", "own weights %", "test %"), rows)


def along(run: Run, marks: Sequence[int] = (10, 50, 100)) -> str:
    """Accuracy and kilobytes of a long run after some of its tasks, from its ledger."""
    weighed = (run.result.get("ledger") or {}).get("tasks")
    if not weighed:
        return ""
    parts = []
    for count in (m for m in marks if m <= len(run.tasks)):
        tasks = run.tasks[:count]
        accuracy = 100 * sum(t["final_accuracy"] for t in tasks) / count
        size = sum(weighed[t["name"]]["total"] for t in tasks) / 8000
        parts.append(f"the first {count} have {accuracy:.2f} % in {size:.1f} kB")
    each = sorted(line["total"] / 8000 for line in weighed.values())
    text = f"Of {len(run.tasks)} tasks {', '.join(parts)}; one takes {each[0]:.1f} to "
    common = kilobytes(run) - sum(each)
    return f"{text}{each[-1]:.1f} kB, what they have in common {common:.1f} kB."


def long_run(tables: Tables) -> str:
    """The hundred tasks of permuted MNIST in one line."""
    return "\n".join(along(run) for run in tables.get("long-mnist", ())) or "Not run yet."


def _bits(runs: Sequence[Run]) -> str:
    """The bit-widths of all tasks, and how many banks they are in; empty for dense methods."""
    widths = sorted({t["bits"] for r in runs for t in r.tasks if t.get("bits") is not None})
    banks = {t.get("bank") for r in runs for t in r.tasks} - {None, NO_BANK}
    if not widths:
        return ""
    shown = str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    return f"{shown}; {len(banks)}"


def described_table(name: str, runs: Sequence[Run], *, with_picture: bool = True) -> str:
    """A table with its title, note and picture."""
    about = DESCRIBED.get(name, Described(name))
    machines = sorted({str(_environment(r, "device")) for r in runs})
    commits = sorted({str(r.result.get("commit") or "unknown") for r in runs})
    made = f"{len(runs)} runs, `results/{name}/`, on {', '.join(machines)}, commit "
    made += f"{', '.join(commits)}."
    parts = [f"### {about.title}", f"{about.note} {made}".strip(), group_table(runs, about)]
    if about.has_tasks:
        parts.append(f"Task by task; bits and banks of every seed:\n\n{task_table(runs)}")
    if with_picture and about.has_picture and len(published.by_label(runs)) > 1:
        parts.insert(2, f"![{about.title}](images/results-{name}.svg){{ width=400 }}")
    for label in published.by_label(runs) if with_picture and about.is_long else ():
        parts.insert(2, f"![{label}](images/results-{name}-{label}.svg){{ width=400 }}")
    if about.is_long:
        parts += [
            text for members in published.by_label(runs).values() if (text := along(members[0]))
        ]
    return "\n\n".join(parts)


def _environment(run: Run, key: str) -> Any:
    return (run.result.get("environment") or {}).get(key, "")


def everything(tables: Tables) -> str:
    """All tables that have runs."""
    known = [n for n in DESCRIBED if n in tables] + [n for n in tables if n not in DESCRIBED]
    shown = [n for n in known if not n.startswith("choose-")]
    return "\n\n".join(described_table(n, tables[n]) for n in shown) or "No runs are published yet."


def headline(tables: Tables) -> str:
    """README's first tables: one for each scenario, and folded what no file backs yet."""
    before = json.loads((RESULTS / "without-files.json").read_text(encoding="utf-8"))
    scenario, older = "", []
    known: dict[str, list[tuple[str, Sequence[Run]]]] = {}
    for row in before["headline"]:
        scenario = row["scenario"] or scenario
        table, _, label = row["replaced_by"].partition("/")
        if runs := published.by_label(tables.get(table, ())).get(label):
            name = row.get("what") or f"`{runs[0].recipe}`, {runs[0].method}"
            known.setdefault(scenario, []).append((name, runs))
        elif row["recipe"]:
            older.append((scenario, *_older_row(row)))
    parts = [f"**{name}**\n\n{headline_table(groups)}" for name, groups in known.items()]
    parts.append(_aims(tables))
    if older:
        heads = ("scenario", "recipe and changes", "n", "accuracy %", "size", "file %", "paper %")
        text = f"{lines_of(heads, older)}\n\n† {before['note']}"
        summary = "<summary>Older numbers, without files (†)</summary>"
        parts.append(f'<details markdown="1">{summary}\n\n{text}\n\n</details>')
    return "\n\n".join(part for part in parts if part)


def headline_table(groups: Sequence[tuple[str, Sequence[Run]]]) -> str:
    """Runs of one scenario by their names, and behind them the paper's own numbers."""
    heads = ["run", "n", "validation %", "task known: %", "class-IL %", "domain-IL %"]
    heads += ["size", "file %", "paper %"]
    rows = [
        [
            name,
            str(len(runs)),
            spread(runs, published.valid_accuracy),
            spread(runs, percent_right),
            *(spread(runs, routed(kind, "average_accuracy")) for kind in ("class-IL", "domain-IL")),
            size_text(_size(runs)),
            spread(runs, share("file"), 1),
            paper_view(runs),
        ]
        for name, runs in groups
    ]
    scenario = groups[0][1][0].scenario
    for method, name in (("tsn-wr", "TSN-wr"), ("tsn", "TSN")):
        if (theirs := ACCURACY[method].get(scenario)) is not None:
            size = f"{CAPACITY[method][scenario]:g}"
            if (method, scenario) == ("tsn", "permuted-mnist"):
                size += " without samples"
            name += f", {scenarios.entry(scenario).network}"
            rows.append([f"the paper's {name}", "5", "", f"{theirs:.2f}", *[""] * 4, size])
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    text = lines_of([heads[i] for i in kept], [[row[i] for i in kept] for row in rows])
    passes = {int(n) for _, runs in groups for r in runs if (n := r.routed("passes")) is not None}
    if passes:
        counts = " or ".join(map(str, sorted(passes)))
        kinds = ", ".join(heads[i].removesuffix(" %") for i in kept if "-IL" in heads[i])
        text += f"\n\n{kinds}: without the task's name; {counts} passes an input."
    return text


def _older_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of before runs were kept, marked."""
    name, _, change = row["recipe"].partition(",")
    name, _, more = name.partition(" ")
    recipe = f"`{name}`{' ' + more if more else ''}{',' + change if change else ''} †"
    size = size_text(row["dense_bytes"] * row["file"] / 100)
    return recipe, str(row["n"]), row["accuracy"], size, str(row["file"]), row["paper"]


def _aims(tables: Tables) -> str:
    """What was aimed at on permuted MNIST, and whether it was reached."""
    groups = published.by_label(tables.get("equal-kilobytes-mnist", ()))
    labels = ("tsn-wr", "tsn-wr-no-routing", "separate-w100-d0.03-b2")
    if not all(label in groups for label in labels):
        return ""

    def mean(label: str) -> float:
        return Spread.of(list(published.accuracies(groups[label]).values())).mean

    def told(label: str) -> str:
        return f"{mean(label):.2f} % in {_size(groups[label]) / 1000:.1f} kB"

    def verdict(label: str) -> str:
        is_reached = mean(label) >= 97.6 and _size(groups[label]) <= 32_000
        return f"{'reached' if is_reached else 'missed'}, {told(label)}"

    parts = [
        "Two aims were set on permuted MNIST, with the task known:",
        f"- 97.6 % in 32 kB: by the recipe, whose files also hold what finds the task, "
        f"{verdict(labels[0])}; without that, {verdict(labels[1])}, at a density that was set, by "
        "bytes alone, after test accuracy of the recipe had been seen. Ten separate networks of "
        f"2 bits have {told(labels[2])}.",
    ]
    signs = "tsn-wr-paper-network-signs"
    if same := groups.get(signs):
        percent = Spread.of([share("file")(r) or 0 for r in same]).mean
        is_reached = mean(signs) >= 97.6 and percent <= 9
        parts.append(
            f"- 97.6 % in 9 % of the paper's own network: {'reached' if is_reached else 'missed'}, "
            f"{mean(signs):.2f} % in {percent:.1f} %, or {_size(same) / 1000:.1f} kB."
        )
    return "\n\n".join((parts[0], "\n".join(parts[1:])))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def unnamed(tables: Tables) -> str:
    """The same models without the task's name, as they were measured beside it."""
    rows = []
    for name, runs in tables.items():
        if name.startswith(published.ASIDE):
            continue
        for label, members in published.by_label(runs).items():
            if all(r.routed("task_accuracy") is None for r in members):
                continue
            measures = (
                *((kind, "average_accuracy") for kind in ("class-IL", "domain-IL")),
                ("class-IL", "backward_transfer"),
                ("task_accuracy",),
                ("entropy_rule", "task_accuracy"),
                *(("together", kind) for kind in ("class-IL", "domain-IL")),
                ("unknown", "auroc"),
            )
            known = spread(members, lambda r: _percent(r.metric("average_accuracy")))
            cells = (spread(members, routed(*path)) for path in measures)
            rows.append((f"`{name}/{label}`", str(len(members)), known, *cells))
    heads = ["run", "n", "task known: %", "class-IL %", "domain-IL %", "BWT of class-IL"]
    heads += ["task found %", "by entropy (SupSup) %", "16 of one task: class-IL %", "domain-IL %"]
    found = [lines_of([*heads, "unknown inputs, AUROC %"], rows)]
    for name, runs in tables.items():
        found += [confused(name, r) for r in runs] if name.startswith("find-") else []
    return "\n\n".join(filter(None, found))


def confused(name: str, run: Run) -> str:
    """The tasks that a run's images were taken for; empty where that was not measured."""
    counts = (run.without_task or {}).get("confusion")
    if not isinstance(counts, list):
        return ""
    tasks = [t["name"] for t in run.tasks]
    rows = [
        (f"{task} ({sum(row):,})", *(f"{100 * n / max(1, sum(row)):.2f}" for n in row))
        for task, row in zip(tasks, counts, strict=True)
    ]
    about = f"`{name}/{run.folder.name}`, what images of each task were taken for, in %:"
    return f"{about}\n\n{lines_of(('images of', *tasks), rows)}"


def energy(tables: Tables) -> str:
    """Multiply-adds by bit-width, bytes moved and latency of models that were measured."""
    rows = []
    for name, runs in tables.items():
        for run in runs:
            found = run.result.get("measured_on_model") or {}
            if not found:
                continue
            costs = measures.Measured(run).operations() or []
            kept = sum(c.effective_macs for c in costs) / max(1, len(costs))
            macs = (f"{costs[0].macs / 1e3:,.1f}", f"{kept / 1e3:,.1f}") if costs else ("–", "–")
            fixed = found.get("fixed_point") or {}
            latency = found.get("latency") or {}
            times = [latency.get(k) for k in ("task", "dense")]
            widths = sorted({t["bits"] for t in run.tasks if t.get("bits") is not None})
            rows.append(
                (
                    f"`{name}/{run.folder.name}`",
                    *macs,
                    ", ".join(map(str, widths)),
                    *(f"{t['bytes'] / 1000:.1f}" if t else "" for t in times),
                    *(f"{t['ms']:.3f}" if t else "" for t in times),
                    _timed_on(run) if latency else "",
                    *(
                        "" if fixed.get(b) is None else f"{100 * fixed[b]:.2f}"
                        for b in ("4", "8", "16")
                    ),
                )
            )
    if not rows:
        return "No published run was measured so yet."
    heads = ["run", "dense MACs, thousand", "kept by a task", "weight bits", "task's ONNX, kB"]
    heads += ["dense ONNX, kB", "task, ms", "dense, ms", "times on", "4 bit %", "8 bit %"]
    return lines_of([*heads, "16 bit %"], rows)


def _timed_on(run: Run) -> str:
    """The machine whose processor the latencies are of."""
    device, cores = _environment(run, "device"), _environment(run, "cores")
    host = "" if device == "cpu" else f", host of {device}"
    return f"{_environment(run, 'processor')}, {cores} cores{host}"


def methods(name: str) -> Callable[[Tables], str]:
    """The table of all methods on one scenario: published runs, or the marked one of before."""

    def table(tables: Tables) -> str:
        if f"main-{name}" in tables:
            return main_table(name, tables)
        before = json.loads((RESULTS / "without-files.json").read_text(encoding="utf-8"))
        own = before[f"methods-{name}"]
        at = own["headings"].index("file %")
        rows = [[*row[:at], _before_kilobytes(own, row), *row[at:]] for row in own["rows"]]
        text = lines_of([*own["headings"][:at], "kB", *own["headings"][at:]], rows)
        note = "† One seed, without files; only the dials of EWC, SI and LwF were searched."
        return f"<details><summary>{own['summary']} †</summary>\n\n{text}\n\n{note}\n\n</details>"

    return table


def _before_kilobytes(own: Mapping[str, Any], row: Sequence[str]) -> str:
    """The kilobytes of a marked row, from its percent of the dense network."""
    return f"{float(row[own['headings'].index('file %')]) / 100 * own['dense_bytes'] / 1000:,.0f}"


def main_table(name: str, tables: Tables) -> str:
    """Every method in one row: with the task known, and without its name where that is defined.

    Methods that were only measured before runs were kept come last, marked.
    """
    about, runs = DESCRIBED[f"main-{name}"], tables[f"main-{name}"]
    groups = published.by_label(runs)
    base = groups.get(about.reference, [])
    rows = []
    for label, members in groups.items():
        if label.endswith(("-class-IL", "-domain-IL")):
            continue
        difference = ahead(members, base) if label != about.reference else None
        accuracy = spread(members, percent_right)
        if difference and difference.is_clear and difference.mean > 0:
            accuracy = f"**{accuracy}**"
        rows.append(
            (
                label,
                str(len(members)),
                spread(members, published.valid_accuracy),
                accuracy,
                shown(difference),
                spread(members, lambda r: _percent(r.metric("backward_transfer"))),
                *(_unnamed(groups, label, kind) for kind in ("class-IL", "domain-IL")),
                spread(members, kilobytes, 1),
                spread(members, share("file"), 1),
                _paper(label, members[0].scenario),
            )
        )
    num_methods = len(rows)
    rows += _marked_rows(name, groups)
    ours = f"− `{about.reference}`, 95 %"
    heads = ("method", "n", "validation %", "task known: %", ours, "BWT", "class-IL %")
    text = lines_of((*heads, "domain-IL %", "kB", "file %", "the paper's"), rows)
    if len(rows) > num_methods:
        text += "\n\n† One seed, measured before runs were kept; of the dials only LwF's was "
        text += "searched."
    if apart := spread_apart(name, tables):
        text += f"\n\n{apart}"
    machines = ", ".join(sorted({str(_environment(r, "device")) for r in runs}))
    made = f"{about.note} {len(runs)} runs on {machines}, `results/main-{name}/`."
    summary = f"{about.title} ({num_methods} rows)"
    folded = f"<details><summary>What that took</summary>\n\n{costs(name, tables)}\n\n</details>"
    return f"#### {summary}\n\n{made}\n\n{text}\n\n{folded}"


def _marked_rows(name: str, groups: Mapping[str, Sequence[Run]]) -> list[tuple[str, ...]]:
    """Rows of before, of methods that the main table has no runs of."""
    own = json.loads((RESULTS / "without-files.json").read_text(encoding="utf-8"))[
        f"methods-{name}"
    ]
    rows = []
    for row in (r for r in own["rows"] if r[0] not in groups):
        # Accuracy and BWT stand in pairs, for each scenario type.
        cells = dict(
            zip([h.partition(":")[0] for h in own["headings"][1::2]], row[1::2], strict=False)
        )
        task, size = row[own["headings"].index("file %")], _before_kilobytes(own, row)
        kinds = (cells.get("class", ""), cells.get("domain", ""))
        rows.append((f"{row[0]} †", "1", "", row[1], "", row[2], *kinds, size, task, row[-1]))
    return rows


def spread_apart(name: str, tables: Tables) -> str:
    """How far runs deviate by all that a seed draws, by the start alone and by the data alone."""
    apart = published.by_label(tables.get(f"spread-{name}", ()))
    both = published.by_label(tables[f"main-{name}"]).get("tsn-wr", [])
    data = "permutations" if name == "mnist" else "class orders"
    parts = []
    for told, runs in (
        ("all that a seed draws", both),
        (f"initial values and batches, one draw of {data}", apart.get("tsn-wr-one-order", [])),
        (f"{data} and validation images, one start", apart.get("tsn-wr-one-start", [])),
    ):
        found = [percent_right(r) for r in runs]
        parts += [f"{Spread.of(found).std:.2f} ({told}; {len(found)} runs)"] if found[1:] else []
    if not apart or not parts:
        return ""
    return f"Standard deviations of `tsn-wr` in points: {', '.join(parts)}."


def _paper(label: str, scenario: str) -> str:
    """What the paper prints of a method: accuracy and capacity, or how it was measured."""
    accuracy = ACCURACY.get(label, {}).get(scenario)
    if accuracy is None:
        return ""
    size = CAPACITY.get(label, {}).get(scenario)
    asked = "domain-IL" if scenario == "permuted-mnist" else "class-IL"
    return f"{accuracy:.2f} {f'({asked})' if size is None else f'at {size:g} %'}"


def _unnamed(groups: Mapping[str, Sequence[Run]], label: str, kind: str) -> str:
    """Accuracy without the task's name: of runs learned so, or of models that find the task."""
    if own := groups.get(f"{label}-{kind}"):
        return spread(own, percent_right)
    return spread(groups[label], routed(kind, "average_accuracy"))


def costs(name: str, tables: Tables) -> str:
    """What every method of a main table took: trials, runs, failures and minutes."""
    path = RESULTS / "failures.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    failed = [str(json.loads(line)["key"]) for line in lines]
    rows = []
    trials = published.by_label(tables.get(f"choose-{name}", ()))
    for label, runs in published.by_label(tables[f"main-{name}"]).items():
        tried = [r for key, found in trials.items() if _is_trial(key, label) for r in found]
        seconds = sum(float(r.result.get("seconds") or 0) for r in (*tried, *runs))
        places = re.compile(rf"(choose-{name}/{label}-\d+|main-{name}/{label}-s\d+)")
        lost = sum(places.fullmatch(key) is not None for key in failed)
        counts = (str(len(tried) or "–"), str(len(runs)), str(lost))
        rows.append((label, *counts, f"{seconds / 60:.1f}"))
    text = "Trials on validation data (–: a variant, which has the value of its main row), runs on "
    text += "test seeds, failures, and minutes (several runs at once):"
    return f"{text}\n\n{lines_of(('row', 'trials', 'runs', 'failed', 'minutes'), rows)}"


def _is_trial(key: str, label: str) -> bool:
    """Whether a run of the choosing, `<label>-<number>`, is of this row."""
    return re.fullmatch(rf"{re.escape(label)}-\d+", key) is not None


def letter(tables: Tables) -> str:
    """The paper's protocol beside the paper's numbers."""
    rows = []
    for scenario in ("permuted-mnist", "split-cifar100", "five-datasets", "tiny-imagenet"):
        for method in ("tsn-wr-wpp", "tsn-wr", "tsn"):
            groups = published.by_label(tables.get(f"paper-{scenario}", ()))
            others = groups.get(f"{method}-stand-ins") or []
            runs = groups.get(method) or others
            missing = f"no data: {NO_DATA[scenario]}" if scenario in NO_DATA else "not run"
            theirs = ACCURACY.get(method, {}).get(scenario)
            rows.append(
                (
                    scenario,
                    f"{method}, **stand-ins**" if runs and runs is others else method,
                    str(len(runs)),
                    spread(runs, percent_right) or missing,
                    "–" if theirs is None else f"{theirs:.2f}",
                    spread(runs, share("printed"), 1),
                    paper_view(runs) if runs else "",
                    spread(runs, share("file"), 1),
                    spread(runs, kilobytes, 1),
                    f"{CAPACITY[method][scenario]:.2f}",
                )
            )
    heads = ["scenario", "method", "n", "accuracy %", "the paper's", "printed %", "paper view %"]
    return lines_of([*heads, "file %", "kB", "the paper's capacity %"], rows)


def recipe_table(tables: Tables) -> str:
    """Every recipe of the package: how many runs of it are published, and those that never ran."""
    counts: dict[str, int] = {}
    for name, runs in tables.items():
        for run in runs if not name.startswith(published.CUT_SHORT) else ():
            counts[run.recipe] = counts.get(run.recipe, 0) + 1
    before = json.loads((RESULTS / "without-files.json").read_text(encoding="utf-8"))["recipes"]
    rows = []
    for name in recipes.names():
        state = before.get(name, "**never run**")
        rows.append(
            (
                f"`{name}`",
                f"{counts[name]} published, with changes or without" if name in counts else state,
            )
        )
    return lines_of(("recipe", "runs"), rows)


def equal_kilobytes(tables: Tables) -> str:
    """Ours and separate small networks on CIFAR-100, from the smallest file to the largest."""
    about = DESCRIBED["equal-kilobytes-cifar100"]
    groups = published.by_label(tables.get("equal-kilobytes-cifar100", ()))
    rows = []
    for label, members in groups.items():
        if not (curve := curve_of(label, about)):
            continue
        size = _size(members)
        accuracy = spread(members, percent_right)
        own = members[0].setting_of("tsn" if members[0].method == "tsn" else "separate")
        width = members[0].setting_of("network")["width"]
        name = f"{curve}, width {width}, {100 * own['density']:g} % of the weights"
        if members[0].method == "tsn":
            shares = f"{100 * own['first_density']:g} %, then {100 * own['density']:g} %"
            name = f"{curve}, width {width}, {shares} of the weights"
        valid = spread(members, published.valid_accuracy)
        leads = [
            f"{shown(ahead(members, rival))} ({size_text(_size(rival))})" if rival else ""
            for times in (1, TWICE)
            for rival in [
                _next_larger(times * size, groups) if members[0].method == "tsn" else None
            ]
        ]
        transfer = shown(ahead(members, alone(label, groups)))
        told = (name, str(len(members)), valid, accuracy, size_text(size), *leads, transfer)
        rows.append((size, told))
    heads = ("ten tasks", "n", "validation %", "accuracy %", "size of all")
    heads += ("− the next larger separate ones, 95 %", "− separate ones of twice the size, 95 %")
    heads += ("transfer: − each task alone, 95 %",)
    rows.sort()
    return lines_of(heads, [row for _, row in rows])


TWICE = 1.9  # and more, so that 91.4 kB are twice 46.5


def _size(runs: Sequence[Run]) -> float:
    return Spread.of([r.size_bytes or 0 for r in runs]).mean


def _next_larger(size: float, groups: Mapping[str, Sequence[Run]]) -> Sequence[Run] | None:
    """The separate networks with the fewest bytes that are not fewer than these."""
    larger = [g for g in groups.values() if g[0].method == "separate" and _size(g) >= size]
    return min(larger, key=_size, default=None)


BLOCKS: dict[str, Callable[[Tables], str]] = {
    "headline": headline,
    "equal-kilobytes": equal_kilobytes,
    "letter": letter,
    "methods-mnist": methods("mnist"),
    "methods-cifar100": methods("cifar100"),
    "everything": everything,
    "recipes": recipe_table,
    "energy": energy,
    "unnamed": unnamed,
    "long-run": long_run,
    "grid": lambda tables: (
        described_table("grid-mnist", tables["grid-mnist"]).partition("\n\n")[2]
        if "grid-mnist" in tables
        else "Not run yet."
    ),
    "pretrained": lambda _: pretrained_table.published(RESULTS / "pretrained"),
    "pretrained-summary": lambda _: pretrained_table.summary(RESULTS / "pretrained"),
}


def rewritten(text: str, tables: Tables) -> str:
    """A document with all its blocks made anew."""

    def block(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise SystemExit(f"no results are called {match[2]!r}; known are {', '.join(BLOCKS)}.")
        return f"{match[1]}\n{BLOCKS[match[2]](tables)}\n\n{match[3]}"

    return BLOCK.sub(block, text)


def pictures(tables: Tables) -> dict[Path, str]:
    """Accuracy against bytes of every table that asks for it, as SVG by its path."""
    from tinysubnets.report.charts import Dot, size_scatter
    from tinysubnets.report.figures import per_task
    from tinysubnets.report.theme import series

    out = {}
    for name, about in DESCRIBED.items():
        groups = published.by_label(tables.get(name, ()))
        # One picture has accuracies of one kind: with the task known.
        groups = {k: g for k, g in groups.items() if not k.endswith(("-class-IL", "-domain-IL"))}
        if not about.has_picture or len(groups) < 2:
            continue
        dots, names = [], list(about.curves.values())
        for index, (label, runs) in enumerate(groups.items()):
            sizes = Spread.of([r.size_bytes or 0 for r in runs])
            accuracy = Spread.of([r.metric("average_accuracy") or 0 for r in runs])
            note = f"{label}: {accuracy.show(2, 100)} % in {size_text(sizes.mean)}"
            curve = curve_of(label, about)
            color, shape = series(names.index(curve) if curve else index + len(names))
            dot = Dot(sizes.mean, accuracy.mean, color, label, shape, size=6.5, note=note)
            dots.append(replace(dot, curve=curve))
        for curve in names:  # named once, at its end
            last = max((d for d in dots if d.curve == curve), key=lambda d: d.x, default=None)
            dots = [
                replace(d, label=curve if d is last else "") if d.curve == curve else d
                for d in dots
            ]
        drawing = size_scatter(about.title, dots)
        out[IMAGES / f"results-{name}.svg"] = drawing.file_text()
    for name in (n for n, about in DESCRIBED.items() if about.is_long):
        for label, runs in published.by_label(tables.get(name, ())).items():
            figure = per_task(runs[0])
            if figure is not None:
                out[IMAGES / f"results-{name}-{label}.svg"] = figure.drawing.file_text()
    return out


def curve_of(label: str, about: Described) -> str:
    """The curve that a label is a point of; empty where it stands alone."""
    own = [name for begin, name in about.curves.items() if label.startswith(begin)]
    return "" if label.endswith("-alone") or not own else own[0]


def separate_networks(tables: Tables) -> str:
    """What separate small networks reach by scenario, for the pictures of the package's reports."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, runs in tables.items():
        if not name.startswith("equal-kilobytes"):
            continue
        for label, members in published.by_label(runs).items():
            if members[0].method != "separate":
                continue
            size = _size(members)
            accuracy = Spread.of([r.metric("average_accuracy") or 0 for r in members]).mean
            point = {"label": label, "bytes": round(size), "accuracy": round(accuracy, 4)}
            found.setdefault(members[0].scenario, []).append(point)
    ordered = {s: sorted(points, key=lambda p: p["bytes"]) for s, points in sorted(found.items())}
    return json.dumps(ordered, indent=1) + "\n"


def made(results: Path = RESULTS) -> dict[Path, str]:
    """Every document and picture as it should be, by its path."""
    tables = published.read_tables(results)
    documents = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    texts = {p: rewritten(t, tables) for p, t in documents.items()}
    return texts | pictures(tables) | {CURVES: separate_networks(tables)}


def main() -> int:
    """Write, check or publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail where it would")
    commands = parser.add_subparsers(dest="command")
    publishing = commands.add_parser("publish", help="put finished runs into results/")
    publishing.add_argument("table")
    publishing.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    if options.command == "publish":
        for folder in options.runs:
            commit = published.current_commit()
            path = RESULTS / options.table / f"{folder.resolve().name}.json"
            print(published.publish(read_run(folder).result, path, commit))
        return 0
    changed = [p for p, text in made().items() if not p.exists() or p.read_text("utf-8") != text]
    for path in changed:
        print(path.relative_to(ROOT), "differs" if options.check else "written")
        if not options.check:
            path.write_text(made()[path], encoding="utf-8")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
