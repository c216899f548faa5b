"""The commands `tsn run`, `resume` and `list`; nothing heavy before one of them runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tinysubnets.commands import processes
from tinysubnets.errors import RunError, SettingError, TinySubNetsError
from tinysubnets.files import read
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from tinysubnets.experiments.run import Experiment


def add_parsers(subparsers: Any) -> None:
    """Add the commands that run experiments."""
    _add_run(subparsers)
    resume = subparsers.add_parser("resume", help="go on with a run that was interrupted")
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    resume.add_argument(
        "--trust",
        action="store_true",
        help="import the network MODULE:FUNCTION that the folder names, without being asked; "
        "networks of the package need no trust",
    )
    _add_processes(resume)
    add_output_options(resume)
    resume.set_defaults(run=_resume)
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
    run.add_argument(
        "--embed-base",
        action="append_const",
        dest="assignments",
        default=[],
        const="network.embed_base=true",
        help="put the weights of a frozen base into the model, so that it can be used without them",
    )
    add_run_options(run)
    _add_processes(run)
    add_output_options(run)
    run.set_defaults(run=_run)


def _add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="train every task in N processes on this machine, each on a part of every batch; "
        "for several machines: torchrun … -m tinysubnets …",
    )


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
        "--matrix",
        choices=("full", "diagonal", "last"),
        help="cells of the accuracy matrix that are measured: every one, each task when it was "
        "learned and all at the end, or all at the end (default: full up to 50 tasks, then "
        "diagonal)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="least time between two checkpoints (default: 30)",
    )


def _run(options: argparse.Namespace) -> int:
    return _together(options, begin)


def _resume(options: argparse.Namespace) -> int:
    return _together(options, _go_on)


def _together(options: argparse.Namespace, work: Callable[[argparse.Namespace], int]) -> int:
    """Do the work in this process, in one of several that train together, or by starting those."""
    wanted = options.processes
    if wanted is not None and wanted < 1:
        raise SettingError(f"--processes {wanted}: at least one process is needed.")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        if wanted is not None and wanted > 1:
            return processes.launch(wanted, options.given)
        return work(options)
    if wanted is not None and wanted != int(os.environ["WORLD_SIZE"]):
        raise SettingError(
            f"--processes {wanted}, but {os.environ['WORLD_SIZE']} were started already; leave it "
            "out with torchrun."
        )
    from tinysubnets.training.distributed import process_group

    with process_group(_device(options)):
        return work(options)


def _device(options: argparse.Namespace) -> str:
    """The device of the run: as asked for, or, for a run that goes on, the one it had."""
    if hasattr(options, "device"):
        return str(options.device)
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        values = tomllib.loads(read(Path(options.folder) / "config.toml").decode("utf-8"))
        return str(values["run"]["device"])
    return "auto"  # the folder is on the machine of the first process


def begin(options: argparse.Namespace) -> int:
    """A new run to its end, in this process; the options are those of `tsn run`."""
    from tinysubnets.datasets import hub
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.recipe import Plan, default_folder
    from tinysubnets.experiments.run import Experiment
    from tinysubnets.experiments.run_dir import RunDir
    from tinysubnets.format import FILE_NAME

    chosen = recipe.load(options.recipe, method=options.method, assignments=options.assignments)
    root = hub.data_root(options.data)
    data = None if root is None else str(root.resolve())  # where a resumed run looks, too
    plan = Plan(
        chosen,
        options.seed,
        options.device,
        options.threads,
        data,
        options.checkpoint_seconds,
        options.matrix,
    )
    path = Path(options.out) if options.out else default_folder(chosen, options.seed)
    check_tensorboard(options)
    if (path / FILE_NAME).exists():
        raise RunError(f"{path} holds a model that no run has made; give another folder by --out.")
    with RunDir(path) as folder:
        return _perform(Experiment.begin(plan, folder), options)


def _go_on(options: argparse.Namespace) -> int:
    from tinysubnets.experiments.checkpoint import Checkpoints
    from tinysubnets.experiments.run import Experiment
    from tinysubnets.experiments.run_dir import RunDir
    from tinysubnets.training.distributed import from_first, is_first

    path = Path(options.folder)
    if not from_first(path.is_dir):
        raise RunError(f"{options.folder} is not a folder; give the folder of an earlier run.")
    check_tensorboard(options)
    with RunDir(path) as folder:
        if not from_first(lambda: folder.is_finished):
            from_first(lambda: _check_trust(folder.config(), options))
            return _perform(Experiment.resume(folder), options)
        if not is_first():
            return 0
        Checkpoints(folder.path).remove()  # of a process that was killed right after its result
        with read_or_not():
            print(f"{folder.path} is finished: there is nothing to resume.")
        if not options.no_report and not (folder.path / "report.html").exists():
            add_report(folder.path)
    return 0


def _check_trust(values: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Ask, or refuse, before code is imported that a folder names and not the user."""
    network = values.get("network")
    name = str(network.get("name", "")) if isinstance(network, Mapping) else ""
    if ":" not in name or options.trust:
        return
    shown = for_terminal(name)
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{options.folder} asks to import and run {shown!r}. ", end="", file=sys.stderr)
        print("Do you trust this folder? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise RunError(
        f"{options.folder} names the network {shown!r}, which would be imported and run. Where the "
        "folder is your own, or you trust who made it: tsn resume --trust."
    )


def check_tensorboard(options: argparse.Namespace) -> None:
    """Refuse --tensorboard before anything is written, if TensorBoard is not installed."""
    if options.tensorboard:
        from tinysubnets.experiments.progress import summary_writer

        summary_writer()


@contextlib.contextmanager
def read_or_not() -> Iterator[None]:
    """Inside, it is no error if the reader of the output has gone, as in `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        unread()


def unread() -> None:
    """Let standard output go nowhere, now that its reader has gone.

    Python would complain once more when it closes the stream.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def add_report(folder: Path) -> None:
    """The report of a finished run; a run without one is a run all the same."""
    try:
        from tinysubnets.report import write_report

        page = write_report([folder])
        with read_or_not():
            print(f"report: {page}")
    except TinySubNetsError as error:
        print(f"no report: {for_terminal(str(error))}", file=sys.stderr)


def _perform(experiment: Experiment, options: argparse.Namespace) -> int:
    """Run an experiment to its end or to Ctrl-C, and show it."""
    from tinysubnets.experiments.progress import TensorBoard, open_display, summary
    from tinysubnets.experiments.run import Finished
    from tinysubnets.training import distributed

    if not distributed.is_first():
        return _follow(experiment)
    path = experiment.folder.path
    board = TensorBoard(path) if options.tensorboard else None
    watching = board or contextlib.nullcontext()
    with interruptible() as interruption, open_display() as display, watching, _hinted(path):
        for event in experiment.steps():
            with read_or_not():
                display.show(event)
            if board is not None:
                board.show(event)
            if isinstance(event, Finished):
                break
            if distributed.any_of(interruption.is_wanted):
                experiment.save_()
                experiment.folder.log("stopped and saved")
                print(f"saved. Go on with: tsn resume {path}", file=sys.stderr)
                return 130
    assert isinstance(event, Finished)
    with read_or_not():
        print(f"\n{summary(event.result)}, in {path}")
    if not options.no_report:
        add_report(path)
    return 0


def _follow(experiment: Experiment) -> int:
    """Run an experiment to its end without showing or saving it: another process does that."""
    from tinysubnets.experiments.run import Finished
    from tinysubnets.training.distributed import any_of

    with interruptible(said="") as interruption:
        for event in experiment.steps():
            if not isinstance(event, Finished) and any_of(interruption.is_wanted):
                return 130
    return 0


@contextlib.contextmanager
def _hinted(path: Path) -> Iterator[None]:
    """Say how to go on, if a run ends by lack of memory, a lost process, or an unforeseen error."""
    from tinysubnets.training import distributed

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if distributed.is_active() or not isinstance(error, TinySubNetsError):
            print(f"go on from the last checkpoint with: tsn resume {path}", file=sys.stderr)
        raise


class _Interruption:
    """Whether the user wants to stop: the first Ctrl-C asks, the second one does not wait.

    `react` takes the place of stopping at once: it is called at every Ctrl-C. `said` is what the
    user is told; nothing where it is empty.
    """

    def __init__(self, react: Callable[[], None] | None, said: str) -> None:
        self.is_wanted, self.react, self.said = False, react, said

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.react is not None:
            self.react()
        elif self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        if self.said:
            print(f"\n{self.said}; again to stop at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def interruptible(
    react: Callable[[], None] | None = None, said: str = "stopping after this epoch"
) -> Iterator[_Interruption]:
    """While it lasts, Ctrl-C and SIGTERM ask instead of ending the process."""
    interruption = _Interruption(react, said)
    before = {s: signal.signal(s, interruption) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(options: argparse.Namespace) -> int:
    from tinysubnets import networks, scenarios
    from tinysubnets.datasets import catalog
    from tinysubnets.experiments import methods as learners
    from tinysubnets.experiments import recipe

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
    print("  timm:NAME, torchvision:NAME, where these are installed; MODULE:FUNCTION, your own")
    print("\nrecipes")
    for folder in ("best", "paper"):
        print(f"  {'  '.join(n for n in recipe.names() if n.startswith(folder))}")
    return 0
