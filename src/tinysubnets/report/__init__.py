"""Reports: one self-contained page about one or more runs, and its pictures as files.

    write_report(["runs/demo"], "runs/demo")       # report.html and pictures/

The page needs no network and no script, and follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinysubnets.errors import RunError, not_installed

__all__ = ["write_report"]

PAGE = "report.html"
PICTURES = "pictures"


def write_report(
    run_dirs: str | Path | Sequence[str | Path], out: str | Path | None = None
) -> Path:
    """Write the report of all runs in or below the folders; gives the path of the page.

    `out` is a folder, or the page's own path ending in .html; by default the first folder given.
    Pictures go to `pictures/` beside the page, as SVG that follows the reader's theme as well.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise RunError(not_installed("a report", error.name, "report")) from error
    from tinysubnets.experiments.results import find_runs
    from tinysubnets.files import atomic_write, friendly_os_errors
    from tinysubnets.report.page import build

    folders = [run_dirs] if isinstance(run_dirs, (str, Path)) else list(run_dirs)
    if not folders:
        raise RunError("no run folder was given; a report is about at least one run.")
    page = _page_path(folders[0] if out is None else out)
    text, figures = build(find_runs(folders))
    pictures = page.parent / PICTURES
    with friendly_os_errors(page.parent):
        pictures.mkdir(parents=True, exist_ok=True)
        for name, drawing in figures.items():
            drawing.save(pictures / f"{name}.svg")
        atomic_write(page, text.encode("utf-8", "replace"))
    return page


def _page_path(out: str | Path) -> Path:
    path = Path(out)
    return path if path.suffix == ".html" else path / PAGE
