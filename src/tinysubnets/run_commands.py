"""The commands `tsn run`, `resume`, `compare` and `list`; nothing heavy before one of them runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tinysubnets.errors import TinySubNetsError

if TYPE_CHECKING:
    from tinysubnets.experiment import Experiment


def add_parsers(subparsers: Any) -> None:
    """Add the commands that run experiments."""
    _add_run(subparsers)
    resume = subparsers.add_parser("resume", help="go on with a run that was interrupted")
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    add_output_options(resume)
    resume.set_defaults(run=_resume)
    _add_compare(subparsers)
    shown = subparsers.add_parser("list", help="scenarios, methods, networks and recipes")
    shown.add_argument("--data", metavar="DIR", help="local folder of data sets")
    shown.set_defaults(run=_list)


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="learn the tasks of a scenario one after the other",
        description="Learn the tasks of a scenario one after the other; without an argument, "
        "five permuted digit tasks by TinySubNets.",
    )
    run.add_argument(
        "recipe",
        nargs="?",
        metavar="SCENARIO|RECIPE",
        help="a scenario (its best recipe), best/NAME, paper/NAME or your own TOML file",
    )
    run.add_argument("--method", help="the method, see tsn list (default: the recipe's)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", metavar="DIR", help="the run folder (default: below runs/)")
    add_run_options(run)
    add_output_options(run)
    run.set_defaults(run=_run)


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="run several methods and seeds of a scenario, and compare them",
        description="Run each method with seeds 0 to N-1, in DIR/<method>/seed-<n>/. Finished "
        "runs are not run again, interrupted ones go on.",
    )
    compare.add_argument("recipe", metavar="SCENARIO|RECIPE", help="as for run")
    compare.add_argument(
        "--methods", required=True, metavar="A,B", help="methods, divided by commas"
    )
    compare.add_argument("--seeds", type=int, default=5, metavar="N", help="(default: 5)")
    compare.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: cores)")
    compare.add_argument("--out", required=True, metavar="DIR", help="the folder of all runs")
    add_run_options(compare)
    add_output_options(compare)
    compare.set_defaults(run=_compare)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """The options on what is written beside the result."""
    parser.add_argument("--no-report", action="store_true", help="write no report page")
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard event files as well"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that `run` and `compare` share."""
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data", metavar="DIR", help="local folder of data sets")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="KEY=VALUE",
        help="another value of a setting, for example training.epochs=5; may be repeated",
    )
    parser.add_argument("--threads", type=int, help="CPU threads of torch in each run")
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="least time between two checkpoints within a task (default: 30)",
    )


def _run(options: argparse.Namespace) -> int:
    from tinysubnets import recipe
    from tinysubnets.data import hub
    from tinysubnets.experiment import Experiment
    from tinysubnets.plan import Plan, default_folder
    from tinysubnets.run_folder import RunFolder

    chosen = recipe.load(options.recipe, method=options.method, assignments=options.assignments)
    root = hub.data_root(options.data)
    data = None if root is None else str(root.resolve())  # where a resumed run looks, too
    plan = Plan(
        chosen, options.seed, options.device, options.threads, data, options.checkpoint_seconds
    )
    path = Path(options.out) if options.out else default_folder(chosen, options.seed)
    with RunFolder(path) as folder:
        return _perform(Experiment.begin(plan, folder), options)


def _resume(options: argparse.Namespace) -> int:
    from tinysubnets.errors import RunError
    from tinysubnets.experiment import Experiment
    from tinysubnets.run_folder import RunFolder

    if not Path(options.folder).is_dir():
        raise RunError(f"{options.folder} is not a folder; give the folder of an earlier run.")
    with RunFolder(options.folder) as folder:
        return _perform(Experiment.resume(folder), options)


def _compare(options: argparse.Namespace) -> int:
    from tinysubnets import compare, recipe
    from tinysubnets.errors import SettingError

    methods = [m.strip() for m in options.methods.split(",") if m.strip()]
    if options.seeds < 1 or not methods or len(set(methods)) != len(methods):
        raise SettingError("give at least one seed, and each method once: --methods tsn,wsn.")
    for method in methods:  # mistakes show before the first run begins
        recipe.load(options.recipe, method=method, assignments=options.assignments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    on_gpu = options.device.startswith("cuda") or (options.device == "auto" and _has_gpu())
    jobs = options.jobs or (1 if on_gpu else cores or 1)
    comparison = compare.Comparison(
        [
            compare.Job(method, seed, folder, _run_arguments(options, method, seed, folder, jobs))
            for seed in range(options.seeds)
            for method in methods
            if (folder := Path(options.out) / method / f"seed-{seed}")
        ],
        jobs,
    )
    with _interruptible(comparison.stop, "stopping; the runs save what they have"):
        compare.run_all(comparison)
    print(f"\n{compare.summary(Path(options.out), methods)}")
    failed = [j for j in comparison.jobs if j.state == "failed" and j.detail != "stopped"]
    for job in failed:
        print(f"failed: {job.method} seed {job.seed}: {job.detail}", file=sys.stderr)
    if not options.no_report and any(job.is_finished for job in comparison.jobs):
        _write_report(Path(options.out))
    if comparison.is_stopping:
        print("stopped. The same command goes on with it.", file=sys.stderr)
        return 130
    return 1 if failed else 0


def _run_arguments(
    options: argparse.Namespace, method: str, seed: int, folder: Path, jobs: int
) -> tuple[str, ...]:
    """The arguments of `tsn run` for one run of a comparison."""
    arguments = ["run", options.recipe, "--method", method, "--seed", str(seed)]
    arguments += ["--out", str(folder), "--device", options.device, "--no-report"]
    arguments += ["--checkpoint-seconds", str(options.checkpoint_seconds)]
    if options.data is not None:
        arguments += ["--data", options.data]
    threads = options.threads or (max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None)
    if threads is not None:
        arguments += ["--threads", str(threads)]
    arguments += [part for text in options.assignments for part in ("--set", text)]
    return tuple(arguments + (["--tensorboard"] if options.tensorboard else []))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _write_report(folder: Path) -> None:
    """The report of a finished run; a run without one is a run all the same."""
    try:
        from tinysubnets.report import write_report

        print(f"report: {write_report([folder])}")
    except TinySubNetsError as error:
        print(f"no report: {error}", file=sys.stderr)


def _perform(experiment: Experiment, options: argparse.Namespace) -> int:
    """Run an experiment to its end or to Ctrl-C, and show it."""
    from tinysubnets.display import open_display, summary
    from tinysubnets.experiment import Finished
    from tinysubnets.tracking import TensorBoard

    path = experiment.folder.path
    board = TensorBoard(path) if options.tensorboard else None
    with _interruptible() as interruption, open_display() as display:
        for event in experiment.steps():
            display.show(event)
            if board is not None:
                board.show(event)
            if interruption.is_wanted and not isinstance(event, Finished):
                experiment.save_()
                experiment.folder.log("stopped and saved")
                print(f"saved. Go on with: tsn resume {path}", file=sys.stderr)
                return 130
    assert isinstance(event, Finished)
    print(f"\n{summary(event.result)}, in {path}")
    if not options.no_report:
        _write_report(path)
    return 0


class _Interruption:
    """Whether the user wants to stop: the first Ctrl-C asks, the second one does not wait.

    `react` takes the place of stopping at once: it is called at every Ctrl-C.
    """

    def __init__(self, react: Callable[[], None] | None, said: str) -> None:
        self.is_wanted, self.react, self.said = False, react, said

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.react is not None:
            self.react()
        elif self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        print(f"\n{self.said}; again to stop at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interruptible(
    react: Callable[[], None] | None = None, said: str = "stopping after this epoch"
) -> Iterator[_Interruption]:
    interruption = _Interruption(react, said)
    before = {s: signal.signal(s, interruption) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(options: argparse.Namespace) -> int:
    from tinysubnets import learners, networks, recipe, scenarios
    from tinysubnets.data import catalog

    present = {name: catalog.available(name, options.data) for name in catalog.names()}
    marks = {name: "there" if found.present else "not there" for name, found in present.items()}
    print("scenarios: tasks x classes; network; data")
    for name, entry in scenarios.SCENARIOS.items():
        sets = ", ".join(f"{d} ({marks.get(d, 'there')})" for d in entry.datasets) or "any"
        print(f"  {name:16} {entry.line}\n  {'':16} {entry.tasks}; {entry.network}; {sets}")
    print("\ndata sets: where they come from, and whether they are there")
    print(f"  {'digits':16} bundled with scikit-learn")
    for name, found in present.items():
        about = catalog.find(name).description
        print(f"  {name:16} {found.where} ({marks[name]})\n  {'':16} {about}")
    print("\nmethods")
    for name, line in learners.METHODS.items():
        print(f"  {name:16} {line}")
    print("\nnetworks")
    for name in networks.names():
        print(f"  {name:16} {networks.describe(name)}")
    print("\nrecipes")
    for folder in ("best", "paper"):
        print(f"  {'  '.join(n for n in recipe.names() if n.startswith(folder))}")
    return 0
