"""Runs of recipes with development seeds, several at a time: validation accuracy and bytes alone.

    python benchmarks/frontier/validate.py JOBS.jsonl OUT.jsonl --data DATA --jobs 4

A job is {"name": …, "recipe": …, "set": {key: value}, "seeds": [100, 101]}. Test accuracy is in
the runs' own folders and is not read.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any


def run(job: dict[str, Any], seed: int, data: str, threads: int) -> dict[str, Any]:
    """One run by the command; what its validation data say, and the bytes of its file."""
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [sys.executable, "-m", "tinysubnets", "run", job["recipe"], "--out", str(out)]
        command += ["--seed", str(seed), "--data", data, "--no-report", "--matrix", "last"]
        command += ["--threads", str(threads), "--checkpoint-seconds", "1000"]
        command += ["--method", job["method"]] if "method" in job else []
        for key, value in job.get("set", {}).items():
            text = value if isinstance(value, str) else json.dumps(value)
            command += ["--set", f"{key}={text}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return {"name": job["name"], "seed": seed, "error": (done.stdout + done.stderr)[-2000:]}
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    tasks = result["tasks"]
    accuracies = [100 * t["valid_accuracy"] for t in tasks]
    ledger = {k: round(bits / 8) for k, bits in result["ledger"]["total"].items() if k != "total"}
    return {
        "name": job["name"],
        "recipe": job["recipe"],
        "set": job.get("set", {}),
        "seed": seed,
        "valid_accuracy": round(statistics.mean(accuracies), 2),
        "tasks": [round(a, 1) for a in accuracies],
        "kB": round(result["ledger"]["file_bytes"] / 1000, 1),
        "ledger": ledger,
        "densities": [round(t["density"], 4) for t in tasks if "density" in t],
        "training_seconds": round(sum(t["training_seconds"] for t in tasks), 1),
        "seconds": round(time.time() - begin, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=pathlib.Path, help="jobs as JSON lines")
    parser.add_argument("out", type=pathlib.Path, help="JSON lines are added to it")
    parser.add_argument("--data", required=True)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    jobs = [json.loads(line) for line in args.work.read_text().splitlines() if line.strip()]
    pairs = [(job, seed) for job in jobs for seed in job.get("seeds", [100, 101])]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        found = [pool.submit(run, job, seed, args.data, args.threads) for job, seed in pairs]
        for one in concurrent.futures.as_completed(found):
            row = one.result()
            shown = [row.get(k) for k in ("name", "seed", "valid_accuracy", "kB", "seconds")]
            print(*shown, row.get("error", ""), flush=True)
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
