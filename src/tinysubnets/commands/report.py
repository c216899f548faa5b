"""The commands `tsn report` and `tsn paper`; nothing heavy is imported before one of them runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

FORMATS = ("text", "markdown", "latex")


def add_parsers(subparsers: Any) -> None:
    """Add both commands; each sets `run`, which takes the arguments and gives an exit status."""
    report = subparsers.add_parser(
        "report",
        help="write one HTML page about finished runs, with pictures",
        description="Write one self-contained HTML page about all finished runs in or below the "
        "given folders, and its pictures as SVG.",
    )
    report.add_argument("runs", nargs="+", metavar="DIR", help="run folders, or folders of runs")
    report.add_argument(
        "--out", metavar="PATH", help="a folder or an .html file (default: the first DIR)"
    )
    report.set_defaults(run=run_report)

    paper = subparsers.add_parser(
        "paper",
        help="the paper's tables and figures, with ours beside them",
        description="Without NAME: list the tables and figures of the paper. With NAME: print it "
        "with the values of the published runs, or of your own, beside the paper's; all prints "
        "every one.",
    )
    paper.add_argument("name", nargs="?", metavar="NAME", help="a table or figure, or all")
    paper.add_argument(
        "--runs",
        nargs="+",
        default=[],
        metavar="DIR",
        help="run folders, or folders of runs (default: the published runs)",
    )
    paper.add_argument("--format", choices=FORMATS, default="text", help="(default: text)")
    paper.add_argument(
        "--data", metavar="DIR", help="local data sets, for what is measured on saved models"
    )
    paper.add_argument("--out", metavar="DIR", help="a folder for pictures of masks and matrices")
    paper.set_defaults(run=run_paper)


def run_report(arguments: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    from tinysubnets.report import write_report

    page = write_report(arguments.runs, arguments.out)
    print(f"report: {page}")
    return 0


def run_paper(arguments: argparse.Namespace) -> int:
    """Print the list of tables, or one of them."""
    from tinysubnets import paper
    from tinysubnets.experiments.published import results_folder

    if arguments.name is None:
        print(paper.listing())
        return 0
    text = paper.show(
        arguments.name,
        arguments.runs,
        form=arguments.format,
        data=arguments.data,
        out=arguments.out,
    )
    print(text, end="")
    if not arguments.runs and results_folder() is None:
        print(
            "the published runs are in a clone of the source, not in an installation; --runs DIR "
            "shows yours.",
            file=sys.stderr,
        )
    return 0
