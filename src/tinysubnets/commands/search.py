"""The command `tsn search`; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands.compare import add_cluster_options, cluster_of
from tinysubnets.commands.run import interruptible
from tinysubnets.errors import RunError, SettingError

if TYPE_CHECKING:
    from tinysubnets.experiments.search import Event, Search, TrialResult
    from tinysubnets.experiments.trial import SearchPlan

BEST, PICTURE = "best.toml", "front.svg"


def add_parsers(commands: Any) -> None:
    """Add the command."""
    search = commands.add_parser(
        "search",
        help="find the settings of the best model below so many bytes",
        description="Try settings of a recipe, judged by validation accuracy and by the bytes of "
        "the file; test data are never read. The same command goes on with a search that was "
        "stopped.",
    )
    search.add_argument("recipe", metavar="SCENARIO|RECIPE", help="as for run")
    search.add_argument("--method", help="the method, see tsn list (default: the recipe's)")
    search.add_argument(
        "--trials", type=int, default=40, metavar="N", help="trials in all (default: 40)"
    )
    search.add_argument(
        "--budget", metavar="SIZE", help="the largest file wanted: 100kB, 2.5MB or bytes"
    )
    search.add_argument(
        "--seeds",
        default="100,101",
        metavar="A,B",
        help="development seeds, with each of which every trial is run (default: 100,101)",
    )
    search.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="KEY=LOW..HIGH|A,B,C",
        help='what is tried of a setting, for example "tsn.density=0.01..0.3 log"; may be '
        "repeated, and is then the whole space (default: the recipe's [search], else that of the "
        "method)",
    )
    search.add_argument("--seed", type=int, default=0, help="of the search itself (default: 0)")
    search.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="trials at a time (default: 1, on a cluster as many as it has room for)",
    )
    add_cluster_options(search, "trial")
    search.add_argument("--out", metavar="DIR", help="the folder of the search (default: in runs/)")
    search.add_argument("--device", default="auto", help="auto, cpu or cuda")
    search.add_argument("--data", metavar="DIR", help="local folder of data sets")
    search.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="KEY=VALUE",
        help="another value of a setting that is not searched; may be repeated",
    )
    search.add_argument("--threads", type=int, help="CPU threads of torch in each trial")
    search.set_defaults(run=_search)


def _search(options: argparse.Namespace) -> int:
    from tinysubnets.experiments.run_dir import RunDir
    from tinysubnets.experiments.search import Search, import_optuna

    import_optuna()  # missed before anything is read
    with contextlib.ExitStack() as held:
        cluster = None if options.cluster is None else held.enter_context(cluster_of(options))
        if options.jobs is None:
            options.jobs = 1 if cluster is None else cluster.num_places
        plan = _planned(options)
        path = _folder(options, plan)
        folder = held.enter_context(RunDir(path))
        search = held.enter_context(Search(plan, folder, cluster))
        is_stopped = _run(search)
        print(f"\n{_counted(search)}, in {path}")
        is_found = bool(search.results or not is_stopped) and _tell(search, options)
    if is_stopped:
        print("stopped. The same command goes on with it.", file=sys.stderr)
        return 130
    return 0 if is_found else 1


def _planned(options: argparse.Namespace) -> SearchPlan:
    """What is searched; mistakes show here, before the first trial begins."""
    from tinysubnets import config
    from tinysubnets.config import MOST_THREADS
    from tinysubnets.datasets import hub
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.search import parse_size
    from tinysubnets.experiments.search_space import own_settings, read_space
    from tinysubnets.experiments.trial import SearchPlan, untested
    from tinysubnets.training.precision import pick_device

    for name, least in (("trials", 1), ("jobs", 1)):
        if getattr(options, name) < least:
            raise SettingError(f"--{name} {getattr(options, name)}: give at least {least}.")
    if options.threads is not None and not 1 <= options.threads <= MOST_THREADS:
        raise SettingError(f"--threads {options.threads}: give 1 to {MOST_THREADS:,}.")
    budget = None if options.budget is None else parse_size(options.budget)
    seeds = _seeds(options.seeds)
    chosen = recipe.load(options.recipe, method=options.method, assignments=options.assignments)
    table = config.override(recipe.read(options.recipe)[1], options.assignments).get("search", {})
    root = hub.data_root(options.data)
    data = None if root is None else str(root.resolve())
    # All data are looked at before anything is trained: a missing set must not cost hours.
    scenario = untested(chosen, seeds[0], data)
    tasks = [scenario.task(i) for i in range(len(scenario.names))]
    shape = (len(tasks[0].train), *tasks[0].valid.inputs(slice(0, 1)).shape[1:])
    space = read_space(chosen, options.space, table, shape=shape, num_tasks=len(tasks))
    return SearchPlan(
        recipe=chosen,
        space=space,
        first=own_settings(chosen, space, shape),
        seeds=seeds,
        num_trials=options.trials,
        budget=budget,
        seed=options.seed,
        jobs=options.jobs,
        # On a cluster every machine chooses for itself.
        device=options.device if options.cluster else str(pick_device(options.device)),
        data=data,
        threads=options.threads,
    )


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or len(set(seeds)) < len(seeds):
        raise SettingError(f"--seeds {text!r}: give different integers, as 100,101.")
    return seeds


def _folder(options: argparse.Namespace, plan: SearchPlan) -> Path:
    """The folder of the search: always the same for the same command, so that it goes on."""
    if options.out:
        return Path(options.out)
    return Path("runs") / plan.recipe.short_name / plan.recipe.method / "search"


# --------------------------------------------------------------------------------------------------
# While it runs


def _run(search: Search) -> bool:
    """Run the search to its end or to Ctrl-C, and show it; gives whether it was stopped."""
    said = "stopping; what is done stays"
    with (
        interruptible(said=said) as interruption,
        _open_display(search) as display,
        contextlib.closing(search.steps()) as steps,
    ):
        for event in steps:
            display.show(event)
            if interruption.is_wanted:
                return True
    return False


class _PlainDisplay:
    """A line for every trial that ends."""

    def __init__(self, search: Search) -> None:
        self.search = search

    def show(self, event: Event) -> None:
        """Show one event of a search."""
        from tinysubnets.experiments.search import TrialEnded

        if isinstance(event, TrialEnded):
            place = f"{self.search.num_begun}/{self.search.plan.num_trials}"
            print(f"trial {event.number} ({place}): {event.state}: {event.detail}", flush=True)


class _LiveDisplay:
    """The running trials and the front so far, on a terminal."""

    def __init__(self, search: Search, live: Any) -> None:
        self.search, self.live = search, live
        self.running: dict[int, str] = {}
        # Of the study, which is read when a trial ends and not at every epoch.
        self.counted, self.front = _counted(search), _front_table(search)

    def show(self, event: Event) -> None:
        """Show one event of a search."""
        from rich.text import Text

        from tinysubnets.experiments.search import TrialBegun, TrialEnded, TrialWent
        from tinysubnets.experiments.trial import Partial

        if isinstance(event, TrialBegun):
            self.running[event.number] = "preparing"
        elif isinstance(event, TrialEnded):
            self.running.pop(event.number, None)
            self.counted, self.front = _counted(self.search), _front_table(self.search)
        elif isinstance(event, TrialWent):
            report = event.report
            self.running[event.number] = (
                f"{report.step} of {report.num_steps} tasks, "
                f"valid {100 * report.accuracy:.2f} %, {report.size_bytes:,} bytes"
                if isinstance(report, Partial)
                else f"{report.task}, epoch {report.epoch}/{report.epochs}, "
                f"valid {100 * report.valid_accuracy:.2f} %"
            )
        lines = [f"trial {number}: {state}" for number, state in sorted(self.running.items())]
        lines.insert(0, f"{self.counted} of {self.search.plan.num_trials}")
        self.live.update(Text("\n".join([*lines, "", self.front]).rstrip(), no_wrap=True))


@contextlib.contextmanager
def _open_display(search: Search) -> Iterator[_PlainDisplay | _LiveDisplay]:
    """A live display on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        yield _PlainDisplay(search)
        return
    from rich.live import Live

    with Live(refresh_per_second=4, transient=True) as live:
        yield _LiveDisplay(search, live)


def _counted(search: Search) -> str:
    counts = search.counts()
    total = sum(counts.values())
    shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{total} trials" + (f" ({shown})" if shown else "")


# --------------------------------------------------------------------------------------------------
# What came out


def _tell(search: Search, options: argparse.Namespace) -> bool:
    """Print the front and write its picture and the best recipe; False: none below the budget."""
    from tinysubnets.experiments.search import best_below
    from tinysubnets.experiments.tables import size_text

    results, folder, budget = search.results, search.folder, search.plan.budget
    if not results:
        reason = search.last_failure()
        raise RunError(
            "no trial was completed" + (f"; the last one failed: {reason}" if reason else ".")
        )
    best = best_below(results, budget)
    is_found = best is not None
    if best is None:
        assert budget is not None
        best = search.front()[0]
        print(
            f"no trial is below the budget of {size_text(budget)}: the smallest has "
            f"{size_text(best.size_bytes)}. Try more trials, or a space of smaller models."
        )
    print(f"\n{_front_table(search, best)}")
    print("\nmean validation accuracy over tasks and seeds; bytes of the largest file")
    picture = folder.path / PICTURE
    _picture(search, best).save(picture)
    folder.write(BEST, _best_recipe(search, best))
    words = ["tsn", "run", str(folder.path / BEST)]
    words += ["--data", options.data] if options.data else []
    words += ["--device", options.device] if options.device != "auto" else []
    print(f"picture: {picture}\nrun the {'best' if is_found else 'smallest'}: {shlex.join(words)}")
    return is_found


def _front_table(search: Search, best: TrialResult | None = None) -> str:
    """The Pareto front, a setting in each column; empty before a trial is complete."""
    from tinysubnets.experiments.tables import text_table

    front = search.front()
    if not front:
        return ""
    keys = list(search.plan.space)
    last = [key.rpartition(".")[2] for key in keys]
    short = [s if last.count(s) == 1 else k for k, s in zip(keys, last, strict=True)]
    rows = [
        [
            f"{r.number}{' (best)' if best is not None and r.number == best.number else ''}",
            f"{100 * r.accuracy:.2f}",
            f"{r.size_bytes / 1000:.2f}",
            *(_shown(r.settings[key]) for key in keys),
        ]
        for r in front
    ]
    return text_table(rows, ["trial", "valid %", "kB", *short])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(search: Search, best: TrialResult) -> Any:
    """Accuracy against bytes of all complete trials: the front in color, the best one named."""
    from tinysubnets.experiments.tables import size_text
    from tinysubnets.report.charts import Dot, size_scatter

    front = {r.number for r in search.front()}
    dots = []
    for r in sorted(search.results, key=lambda r: (r.number in front, r.number == best.number)):
        told = ", ".join(f"{k} = {_shown(v)}" for k, v in r.settings.items())
        place = f"{100 * r.accuracy:.2f} % in {size_text(r.size_bytes)}"
        note = f"trial {r.number}: {place}; {told}"
        if r.number == best.number:
            look = Dot(r.size_bytes, r.accuracy, "warm", place, "diamond", size=6.5, note=note)
        elif r.number in front:
            look = Dot(r.size_bytes, r.accuracy, "series-1", size=5.0, note=note)
        else:
            look = Dot(r.size_bytes, r.accuracy, "faint", hollow=True, size=3.6, note=note)
        dots.append(look)
    return size_scatter("validation accuracy against bytes", dots)


def _best_recipe(search: Search, best: TrialResult) -> str:
    """The whole recipe with the settings of a trial, as `tsn run` takes it."""
    from tinysubnets import config
    from tinysubnets.experiments.search_space import with_settings

    plan = search.plan
    head: Sequence[str] = (
        f"# {plan.recipe.name} by {plan.recipe.method}, trial {best.number} of a search: "
        f"validation accuracy {100 * best.accuracy:.2f} %,",
        f"# {best.size_bytes:,} bytes, with the seeds {', '.join(map(str, plan.seeds))}.",
    )
    values = with_settings(plan.recipe, best.settings).as_dict()
    return "\n".join(head) + "\n" + config.to_toml(values)
