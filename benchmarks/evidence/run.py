"""Run lists of jobs, several at a time, and keep each result the moment it exists.

    python benchmarks/evidence/run.py list                         # lists, runs, estimated minutes
    python benchmarks/evidence/run.py run paper --data DIR --jobs 12 --device cuda --minutes 9
    python benchmarks/evidence/run.py choose cifar100              # what validation chose so far
    python benchmarks/evidence/run.py unpack FILE.jsonl            # a bundle into results/

A result goes to `results/<table>/<run>.json` and, with `--bundle FILE`, as a line to one file, for
a machine that gives few files back. What is there already is not run again; a run that was cut off
goes on from its checkpoint while its folder (`--work`) lives. Failures go to `failures.jsonl` in
the results, or beside the bundle, with the end of what the run printed. It needs torch, numpy,
scipy, pyarrow, safetensors and, to decode images, Pillow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.evidence.jobs import LISTS, RESULTS, Job, NotChosenError, chosen, scores  # noqa: E402

FAILURES = "failures.jsonl"


def one(
    job: Job, folder: Path, data: str | None, device: str, threads: int, measures: bool = True
) -> None:
    """A single run, begun or gone on with; its result is in the folder.

    - `measures`: whether what a job measures on its model is measured, which takes its time.
    """
    from tinysubnets.experiments import recipe
    from tinysubnets.experiments.recipe import Plan
    from tinysubnets.experiments.run import Experiment, TaskLearned
    from tinysubnets.experiments.run_dir import RunDir

    chosen = recipe.load(job.recipe, method=job.method, assignments=job.settings)
    plan = Plan(chosen, job.seed, device, threads, data, checkpoint_seconds=60.0)
    if not (folder / "result.json").exists():  # else it was cut off after its end
        with RunDir(folder) as run:
            begun = (folder / "config.toml").exists()
            experiment = Experiment.resume(run) if begun else Experiment.begin(plan, run)
            for event in experiment.steps():
                if isinstance(event, TaskLearned):
                    accuracy = event.row[event.index]
                    print(f"{job.key}: {event.report.name} {accuracy:.4f}", flush=True)
    if measures and job.measures_model:
        measure(folder, data)


def measure(folder: Path, data: str | None) -> None:
    """What is measured on a run's model, which is not kept: `measured.json` beside it."""
    from tinysubnets.errors import TinySubNetsError
    from tinysubnets.experiments.results import read_run
    from tinysubnets.paper.measures import Measured

    found = Measured(read_run(folder), data)
    measured = found.as_published((4, 8, 16))
    try:
        measured["latency"] = latency(found, folder)
    except (ImportError, TinySubNetsError) as error:  # onnxruntime is not everywhere
        print(f"no latency: {error}", flush=True)
    (folder / "measured.json").write_text(json.dumps(measured), encoding="utf-8")


def latency(found: Any, folder: Path) -> dict[str, Any] | None:
    """Milliseconds of one sample in onnxruntime on a CPU: the first task, and the dense network.

    With the bytes of both files: what has to be moved to start.
    """
    import torch

    from tinysubnets.format.onnx import onnx_latency_ms, to_onnx

    store, tasks = found.store, found.tasks
    if store is None or tasks is None:
        return None
    task, out = tasks[0].name, {}
    sample = tasks[0].valid.inputs(slice(0, 1))
    path = folder / "task.onnx"
    to_onnx(store, task, path)
    out["task"] = {"ms": onnx_latency_ms(path, sample), "bytes": path.stat().st_size}
    # The dense network has the same graph with every weight there.
    net = store.module(task).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05)
    torch.onnx.export(net, (sample,), folder / "dense.onnx", dynamo=True, verbose=False)
    size = sum(p.stat().st_size for p in folder.glob("dense.onnx*"))
    out["dense"] = {"ms": onnx_latency_ms(folder / "dense.onnx", sample), "bytes": size}
    out["threads"] = torch.get_num_threads()
    return out


class Runner:
    """Jobs at work in processes of their own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.working: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
        self.work: Path = options.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.failed: set[str] = set()

    def folder(self, job: Job) -> Path:
        """Where a job runs."""
        return self.work / job.table / job.name

    def log(self, job: Job) -> Path:
        """What a job prints; names of jobs have points in them."""
        folder = self.folder(job)
        return folder.with_name(f"{folder.name}.log")

    def start(self, job: Job) -> None:
        """Begin a job, or go on with it."""
        o = self.options
        folder = self.folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(Path(__file__).resolve()), "one", json.dumps(job.as_dict())]
        command += ["--folder", str(folder), "--device", o.device, "--threads", str(o.threads)]
        command += ["--data", o.data] if o.data else []
        command += ["--no-measures"] if o.no_measures else []
        env = {"OMP_NUM_THREADS": str(o.threads)} | dict(os.environ)
        with open(self.log(job), "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.working[job.key] = (job, process, time.monotonic())

    def collect(self) -> None:
        """Publish what has finished since, and note what failed."""
        for key, (job, process, began) in list(self.working.items()):
            if process.poll() is None:
                continue
            del self.working[key]
            seconds = time.monotonic() - began
            if process.returncode:
                self.note_failure(job, process.returncode, seconds)
            else:
                self.keep(job, seconds)

    def keep(self, job: Job, seconds: float) -> None:
        """Publish a finished run."""
        from tinysubnets.experiments.published import current_commit, publish, published

        o = self.options
        result = json.loads((self.folder(job) / "result.json").read_text(encoding="utf-8"))
        result["commit"] = o.commit or current_commit()
        result["environment"]["jobs"] = o.jobs  # seconds are of runs that shared the machine
        if (measured := self.folder(job) / "measured.json").exists():
            result["measured_on_model"] = json.loads(measured.read_text(encoding="utf-8"))
        publish(result, o.results / f"{job.key}.json")
        if o.bundle:
            with open(o.bundle, "a", encoding="utf-8") as file:
                file.write(json.dumps({"key": job.key, "result": published(result)}) + "\n")
        accuracy = 100 * (result["metrics"]["average_accuracy"] or 0)
        size = (result["ledger"].get("file_bytes") or 0) / 1000
        print(f"{job.key}: {accuracy:.2f} %, {size:.1f} kB, {seconds:.0f} s", flush=True)

    def note_failure(self, job: Job, status: int, seconds: float) -> None:
        """Write down that a run failed, and how."""
        self.failed.add(job.key)
        log = self.log(job).read_text(encoding="utf-8", errors="replace")
        place = self.options.bundle.parent if self.options.bundle else self.options.results
        place.mkdir(parents=True, exist_ok=True)
        row = {"key": job.key, "status": status, "seconds": round(seconds), "end": log[-2000:]}
        with open(place / FAILURES, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{job.key}: FAILED ({status})\n{log[-600:]}", flush=True)

    def run(self, jobs: Sequence[Job]) -> int:
        """All jobs whose results are not there, until they are done or the time is up."""
        o = self.options
        todo = [j for j in jobs if not (o.results / f"{j.key}.json").exists()]
        print(f"{len(todo)} of {len(jobs)} runs to do, {o.jobs} at a time", flush=True)
        end = time.monotonic() + 60 * o.minutes if o.minutes else float("inf")
        try:
            while todo or self.working:
                self.collect()
                now = time.monotonic()
                if now >= end:
                    break
                # A run that cannot end in time is not begun, unless it could go on later.
                while todo and len(self.working) < o.jobs and now < end:
                    self.start(todo.pop(0))
                time.sleep(0.2)
        finally:
            for _, process, _ in self.working.values():
                process.send_signal(signal.SIGTERM)
            for _, process, _ in self.working.values():
                process.wait()
        left = len(todo) + len(self.working)
        print(f"{len(self.failed)} failed, {left} left", flush=True)
        return 1 if self.failed or left else 0


def choose(data: str, results: Path) -> None:
    """Print every value tried, and for every row the one with the best validation accuracy."""
    best = chosen(data, results)
    for label, values in scores(data, results).items():
        for value, score in values.items():
            mark = ", chosen" if value == best.get(label) else ""
            print(f"{label}: {value}: {100 * score:.2f} % on validation data{mark}")


def unpack(bundle: Path, results: Path) -> None:
    """The lines of a bundle as published files; those that are there stay as they are.

    The failures beside it go to those of the results.
    """
    failures = bundle.parent / FAILURES
    if failures.exists():
        known = (results / FAILURES).read_text() if (results / FAILURES).exists() else ""
        new = [line for line in failures.read_text().splitlines() if line not in known]
        results.mkdir(parents=True, exist_ok=True)
        (results / FAILURES).write_text(known + "".join(f"{line}\n" for line in new))
    for line in bundle.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        path = results / f"{row['key']}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row["result"]) + "\n", encoding="utf-8")
            print(path)


def show(results: Path) -> None:
    """All lists: how many runs, how many are there, and how long the others take."""
    for name, jobs in LISTS.items():
        try:
            made = list(jobs())
        except NotChosenError as error:
            print(f"{name:16} {error}")
            continue
        left = [j for j in made if not (results / f"{j.key}.json").exists()]
        minutes = sum(j.seconds for j in left) / 60
        print(f"{name:16} {len(made):4} runs, {len(left):4} to do, {minutes:6.0f} minutes / jobs")


def main() -> int:
    """One of the commands above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("list", "run", "choose", "unpack", "one"):
        command = commands.add_parser(name)
        command.add_argument("--results", type=Path, default=RESULTS)
        if name == "run":
            command.add_argument("lists", nargs="+", choices=list(LISTS), metavar="LIST")
            command.add_argument("--only", default="", help="runs whose keys hold this text")
            command.add_argument("--jobs", type=int, default=1, help="runs at a time")
            command.add_argument("--work", type=Path, default=ROOT / "runs" / "evidence")
            command.add_argument("--bundle", type=Path, help="a file that gets every result too")
            command.add_argument("--minutes", type=float, help="stop after so many")
            command.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="a setting of all runs that changes no result, as training.engine=compiled",
            )
            command.add_argument("--commit", help="of a copy of the tree without its history")
            command.add_argument("--dry-run", action="store_true", help="print the runs alone")
        if name in ("run", "one"):
            command.add_argument("--data", help="local data sets")
            command.add_argument("--device", default="auto")
            command.add_argument("--threads", type=int, default=1)
            command.add_argument(
                "--no-measures",
                action="store_true",
                help="no operations, fixed point and latency of models: minutes of a CPU",
            )
        if name == "choose":
            command.add_argument("data", choices=("cifar100", "mnist"))
        if name == "unpack":
            command.add_argument("bundle", type=Path)
        if name == "one":
            command.add_argument("job")
            command.add_argument("--folder", type=Path, required=True)
    o = parser.parse_args()
    if o.command == "list":
        show(o.results)
    elif o.command == "choose":
        choose(o.data, o.results)
    elif o.command == "unpack":
        unpack(o.bundle, o.results)
    elif o.command == "one":
        given = json.loads(o.job)
        job = Job(**given | {"settings": tuple(given["settings"])})
        one(job, o.folder, o.data, o.device, o.threads, not o.no_measures)
    else:
        # Of each list all rows with one seed first: a table that is cut off has every row.
        try:
            listed = [sorted(LISTS[name](), key=lambda j: j.seed) for name in o.lists]
        except NotChosenError as error:
            raise SystemExit(str(error)) from error
        jobs = [job for some in listed for job in some if o.only in job.key]
        jobs = [replace(job, settings=(*job.settings, *o.set)) for job in jobs]
        if o.dry_run:
            for job in jobs:
                print(job.key, job.recipe, job.method, *job.settings, f"~{job.seconds} s")
            return 0
        return Runner(o).run(jobs)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is at work ends too
    sys.exit(main())
