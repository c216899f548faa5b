"""The command `tsn`: run, resume, compare, list, and the commands on models and reports.

Nothing heavy is imported before a command needs it, so that help and lists come at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tinysubnets.errors import TinySubNetsError
from tinysubnets.version import __version__

if TYPE_CHECKING:
    from tinysubnets.experiment import Experiment

# Modules that bring their own commands by `add_parsers(subparsers)`.
_COMMANDS = ("tinysubnets.model_commands", "tinysubnets.report_commands")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status: 2 after an error, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except TinySubNetsError as error:
        print(f"tsn: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("tsn: out of memory. Use smaller batches or a smaller network.", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has gone; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("tsn: stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsn", description="One network, many tasks, not one bit forgotten."
    )
    parser.add_argument("--version", action="version", version=f"tinysubnets {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    resume = commands.add_parser("resume", help="go on with a run that was interrupted")
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    resume.set_defaults(run=_resume)
    shown = commands.add_parser("list", help="scenarios, methods, networks and recipes")
    shown.add_argument("--data", metavar="DIR", help="local folder of data sets")
    shown.set_defaults(run=_list)
    for name in _COMMANDS:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name).add_parsers(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction) -> None:
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
    run.set_defaults(run=_run)


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
    from tinysubnets.experiment import Experiment
    from tinysubnets.plan import Plan, default_folder
    from tinysubnets.run_folder import RunFolder

    chosen = recipe.load(options.recipe, method=options.method, assignments=options.assignments)
    data = None if options.data is None else str(Path(options.data).expanduser().resolve())
    plan = Plan(
        chosen, options.seed, options.device, options.threads, data, options.checkpoint_seconds
    )
    path = Path(options.out) if options.out else default_folder(chosen, options.seed)
    with RunFolder(path) as folder:
        return _perform(Experiment.begin(plan, folder))


def _resume(options: argparse.Namespace) -> int:
    from tinysubnets.errors import RunError
    from tinysubnets.experiment import Experiment
    from tinysubnets.run_folder import RunFolder

    if not Path(options.folder).is_dir():
        raise RunError(f"{options.folder} is not a folder; give the folder of an earlier run.")
    with RunFolder(options.folder) as folder:
        return _perform(Experiment.resume(folder))


def _perform(experiment: Experiment) -> int:
    """Run an experiment to its end or to Ctrl-C, and show it."""
    from tinysubnets.display import open_display, summary
    from tinysubnets.experiment import Finished

    path = experiment.folder.path
    with _interruptible() as interruption, open_display() as display:
        for event in experiment.steps():
            display.show(event)
            if interruption.is_wanted and not isinstance(event, Finished):
                experiment.save_()
                experiment.folder.log("stopped and saved")
                print(f"saved. Go on with: tsn resume {path}", file=sys.stderr)
                return 130
    assert isinstance(event, Finished)
    print(f"\n{summary(event.result)}, in {path}")
    return 0


class _Interruption:
    """Whether the user wants to stop: the first Ctrl-C asks, the second one does not wait."""

    def __init__(self) -> None:
        self.is_wanted = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        print("\nstopping after this epoch; again to stop at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interruption]:
    interruption = _Interruption()
    before = {s: signal.signal(s, interruption) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(options: argparse.Namespace) -> int:
    from tinysubnets import learners, networks, recipe, scenarios
    from tinysubnets.data import catalog

    print("scenarios (tasks x classes; network; where the data come from)")
    for name, entry in scenarios.SCENARIOS.items():
        print(f"  {name:16} {entry.line}")
        where = []
        for dataset in entry.datasets:
            if dataset == "digits":
                where.append("bundled with scikit-learn")
                continue
            found = catalog.available(dataset, options.data)
            mark = "there" if found.present else "not there"
            where.append(f"{dataset}: {found.where} ({mark})")
        print(f"  {'':16} {entry.tasks}; {entry.network}" + (";" if where else ""))
        for line in where:
            print(f"  {'':18} {line}")
    print("\nmethods")
    for name, line in learners.METHODS.items():
        print(f"  {name:16} {line}")
    print("\nnetworks")
    for name in networks.names():
        print(f"  {name:16} {networks.describe(name)}")
    print("\nrecipes\n  " + "  ".join(recipe.names()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
