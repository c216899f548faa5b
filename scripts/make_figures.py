"""Make the pictures of the README from real runs.

    python scripts/make_figures.py                      # runs permuted-digits first, a few minutes
    python scripts/make_figures.py --runs runs/compare  # from runs that are there

Writes accuracy-against-bytes.svg (all runs), and accuracy-matrix.svg, task-masks.svg and ledger.svg
(the first TSN-wr run) to docs/images.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tinysubnets.experiments.results import Run, find_runs
from tinysubnets.report import figures

ROOT = Path(__file__).parent.parent
METHODS = "tsn,tsn-wr,wsn,packnet,ada-qpacknet,replay,naive,independent"
PICTURES = ("accuracy-matrix", "task-masks", "ledger", "accuracy-against-bytes")


def make_runs(folder: Path) -> None:
    """Run the comparison that the pictures show; what is finished already is not run again."""
    command = [sys.executable, "-m", "tinysubnets", "compare", "permuted-digits"]
    options = ["--methods", METHODS, "--seeds", "1", "--no-report", "--out", str(folder)]
    subprocess.run([*command, *options], check=True)


def pick(runs: list[Run]) -> Run:
    """The run whose own pictures are shown."""
    order = ("tsn-wr", "tsn", "tsn-wr-wpp")
    known = [r for method in order for r in runs if r.method == method]
    if not known:
        raise SystemExit("none of the runs is by TinySubNets; give others with --runs.")
    return known[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="finished runs (default: make them)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    folder = options.runs or ROOT / "runs" / "figures"
    if options.runs is None:
        make_runs(folder)
    runs = find_runs([folder])
    options.out.mkdir(parents=True, exist_ok=True)
    for figure in [*figures.of_run(pick(runs)), *figures.of_all(runs)]:
        if figure.key in PICTURES:
            path = options.out / f"{figure.key}.svg"
            figure.drawing.save(path)
            print(path)


if __name__ == "__main__":
    main()
