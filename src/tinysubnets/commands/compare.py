"""The command `tsn compare`; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands.run import (
    add_output_options,
    add_report,
    add_run_options,
    check_tensorboard,
    interruptible,
    read_or_not,
)
from tinysubnets.config import num_cores
from tinysubnets.errors import SettingError
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from tinysubnets.experiments.cluster import Cluster, ClusterRuns
    from tinysubnets.experiments.compare import Comparison


def add_parsers(commands: Any) -> None:
    """Add the command."""
    compare = commands.add_parser(
        "compare",
        help="run several methods and seeds of a scenario, and compare them",
        description="Run each method with seeds 0 to N-1 in DIR/<method>/seed-<n>/ (for A:class-IL "
        "DIR/A-class-IL). Finished runs are not run again, interrupted ones go on.",
    )
    compare.add_argument("recipe", metavar="SCENARIO|RECIPE", help="as for run")
    compare.add_argument(
        "--methods",
        required=True,
        metavar="A,B",
        help="methods, divided by commas; A:class-IL, A:domain-IL for a scenario type other than "
        "the recipe's, all for every method",
    )
    compare.add_argument("--seeds", type=int, default=5, metavar="N", help="(default: 5)")
    compare.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: cores)")
    compare.add_argument("--out", required=True, metavar="DIR", help="the folder of all runs")
    add_cluster_options(compare, "run")
    compare.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="how often a run that lost its machine of a cluster is run again (default: 2)",
    )
    add_run_options(compare)
    add_output_options(compare)
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    """Run what is not finished, and show the table, the failures and the report."""
    from tinysubnets.experiments import compare

    if options.seeds < 1:
        raise SettingError(f"--seeds {options.seeds}: at least one seed is needed.")
    methods = chosen_methods(options)
    if options.jobs is not None and options.jobs < 1:
        raise SettingError(f"--jobs {options.jobs}: at least one run must go on at a time.")
    check_tensorboard(options)
    with contextlib.ExitStack() as held:
        cluster = None if options.cluster is None else held.enter_context(_cluster_runs(options))
        comparison = planned(options, methods, cluster)
        said = "stopping; the runs save what they have"
        with interruptible(comparison.stop, said):
            compare.run_all(comparison)
    with read_or_not():
        print(f"\n{compare.summary(Path(options.out), methods)}")
    failed = [job for job in comparison.jobs if job.state == "failed"]
    for job in failed:
        detail = for_terminal(job.detail)
        print(f"failed: {job.method} seed {job.seed}: {detail}", file=sys.stderr)
    if not options.no_report and any(job.is_finished for job in comparison.jobs):
        add_report(Path(options.out))
    if comparison.is_stopping or any(job.state == "stopped" for job in comparison.jobs):
        print("stopped. The same command goes on with it.", file=sys.stderr)
        return 130
    return 1 if failed else 0


def chosen_methods(options: argparse.Namespace) -> list[str]:
    """The methods asked for, each once; with their scenario type where it is not the recipe's.

    `all` stands for every method. Mistakes are found before anything runs.
    """
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.methods import METHODS, scenario_types

    told = [m.strip() for m in options.methods.split(",") if m.strip()]
    out: list[str] = []
    for name, colon, scenario_type in (m.partition(":") for m in told):
        if name == "all" and not colon:
            out += METHODS
            continue
        defined = scenario_types(name)  # refuses unknown methods
        if colon and scenario_type not in defined:
            raise SettingError(
                f"{name}:{scenario_type} is not allowed; {name} is defined for "
                f"{', '.join(defined)}."
            )
        chosen = recipe.load(options.recipe, method=name, assignments=options.assignments)
        out.append(
            name
            if scenario_type in ("", chosen.learner.get("scenario_type", "task-IL"))
            else f"{name}:{scenario_type}"
        )
    twice = [m for m in dict.fromkeys(out) if out.count(m) > 1]
    if twice or not out:
        raise SettingError(
            f"--methods {options.methods}: give each method once"
            + (f", not {', '.join(twice)} twice." if twice else ", as tsn,wsn.")
        )
    return out


def add_cluster_options(parser: argparse.ArgumentParser, what: str) -> None:
    """The options on the machines of a cluster; `what` is run there, one or many."""
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help=f"{what}s on the machines of a Ray cluster: auto for the one this machine belongs to, "
        "or host:port of its head",
    )
    parser.add_argument(
        "--gpus",
        type=float,
        metavar="X",
        help=f"GPUs of each {what} on a cluster, 0.25 for a quarter of one (default: 1 where there "
        "are any, 0 with --device cpu); CPUs are as many as --threads",
    )


def cluster_of(options: argparse.Namespace) -> Cluster:
    """The cluster asked for, not connected yet."""
    from tinysubnets.experiments.cluster import Cluster

    if options.gpus is not None and options.gpus < 0:
        raise SettingError(f"--gpus {options.gpus}: give 0 or more.")
    gpus = 0.0 if options.device == "cpu" else options.gpus
    return Cluster(options.cluster, cpus=options.threads or 1, gpus=gpus)


@contextlib.contextmanager
def _cluster_runs(options: argparse.Namespace) -> Iterator[ClusterRuns]:
    """Runs on the cluster asked for; paths are made such that its machines know them."""
    from tinysubnets.experiments.cluster import ClusterRuns

    if options.retries < 0:
        raise SettingError(f"--retries {options.retries}: give 0 or more.")
    if options.recipe.endswith(".toml"):
        options.recipe = str(Path(options.recipe).expanduser().resolve())
    if options.data is not None:
        options.data = str(Path(options.data).expanduser().resolve())
    with cluster_of(options) as cluster:
        with ClusterRuns(cluster, Path(options.out), retries=options.retries) as runs:
            yield runs


def planned(
    options: argparse.Namespace, methods: list[str], cluster: ClusterRuns | None = None
) -> Comparison:
    """All runs of the comparison; mistakes show here, before the first one begins."""
    from tinysubnets.experiments import compare, recipe

    on_gpu = options.device.startswith("cuda") or (options.device == "auto" and _has_gpu())
    cores = num_cores()
    at_a_time = options.jobs or (1 if on_gpu else cores)
    # Each run has its share of the cores; how many of them a network can use it finds out itself.
    threads = options.threads or (max(1, cores // at_a_time) if at_a_time > 1 else None)
    recipes = {
        told: recipe.load(
            options.recipe,
            method=told.partition(":")[0],
            assignments=[*options.assignments, *_scenario_type(told)],
        )
        for told in methods
    }
    jobs = []
    for seed in range(options.seeds):
        for told in methods:
            folder = Path(options.out) / told.replace(":", "-") / f"seed-{seed}"
            compare.check_settings(folder, recipes[told])
            arguments = run_arguments(options, told, seed)
            jobs.append(compare.Job(told, seed, folder, arguments, threads))
    if cluster is not None:
        at_a_time = options.jobs or len(jobs)  # they wait there for a machine
    return compare.Comparison(jobs, at_a_time, cluster)


def _scenario_type(told: str) -> list[str]:
    """The assignment that makes `method:scenario_type` what it says."""
    from tinysubnets.experiments.methods import method

    name, _, scenario_type = told.partition(":")
    return [f"{method(name).table}.scenario_type={scenario_type}"] if scenario_type else []


def run_arguments(options: argparse.Namespace, told: str, seed: int) -> tuple[str, ...]:
    """The arguments of `tsn run` for one run of a comparison, without its folder."""
    method = told.partition(":")[0]
    arguments = ["run", options.recipe, "--method", method, "--seed", str(seed)]
    arguments += ["--device", options.device, "--no-report"]
    arguments += ["--checkpoint-seconds", str(options.checkpoint_seconds)]
    if options.matrix is not None:
        arguments += ["--matrix", options.matrix]
    if options.data is not None:
        arguments += ["--data", options.data]
    if options.threads is not None:
        arguments += ["--threads", str(options.threads)]
    assignments = [*options.assignments, *_scenario_type(told)]
    arguments += [part for text in assignments for part in ("--set", text)]
    return tuple(arguments + (["--tensorboard"] if options.tensorboard else []))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
