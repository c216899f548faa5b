"""The command `tsn demo`: a first run, pictures to try its model on, and what to do next."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands import run
from tinysubnets.errors import SettingError, install_command

if TYPE_CHECKING:
    import numpy as np

ENLARGED = 20  # pixels of a picture to look at for each pixel of a digit
SHOWN_DIGIT = 3
PER_CLASS = 40  # pictures of each digit in the folder that a further task is learned from


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    demo = subparsers.add_parser(
        "demo",
        help="a first run of about a minute, and what to do with its model",
        description="Learn five tasks with one small network, write pictures to try it on, and "
        "show three commands to go on with.",
    )
    demo.add_argument("--out", metavar="DIR", help="the run folder (default: runs/demo)")
    run.add_run_options(demo)
    run.add_output_options(demo)
    demo.set_defaults(run=_demo, recipe=None, method=None, seed=0)


def _demo(options: argparse.Namespace) -> int:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise SettingError(
            "tsn demo writes pictures, for which Pillow is missing. "
            f"Install it with: {install_command('data')}"
        ) from None
    from tinysubnets.experiments.recipe import unused

    folder = Path(options.out) if options.out else unused(Path("runs/demo"))
    options.out = str(folder)
    if status := run.begin(options):
        return status
    picture, photos = _write_pictures(folder)
    tsn, shown = this_command(), shlex.quote(str(folder))
    print("\nThree things to do next:")
    for command, text in (
        (f"inspect {shown}", "what each task uses, and where every byte goes"),
        (
            f"predict {shown} --task permutation-0 {shlex.quote(str(picture))} --top 3",
            f"a picture that it has not seen, of a {SHOWN_DIGIT}",
        ),
        (
            f"learn {shown} --task mirrored --data {shlex.quote(str(photos))}",
            "one more task, from a folder of pictures per class",
        ),
    ):
        print(f"\n  # {text}\n  {tsn} {command}")
    return 0


def this_command() -> str:
    """How this very program is called again: `tsn`, where that is what a shell would start."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m tinysubnets"
    found = shutil.which("tsn")
    is_found = found is not None and called.exists() and Path(found).samefile(called)
    return "tsn" if is_found or called.name != "tsn" else shlex.quote(str(called))


def _write_pictures(folder: Path) -> tuple[Path, Path]:
    """A test digit as a picture to look at, and mirrored digits in a folder per class."""
    from tinysubnets.files import friendly_os_errors
    from tinysubnets.scenarios.sets import digits

    test, train = digits("test"), digits("train")
    picture, photos = folder / "three.png", folder / "mirrored"
    shown = test.inputs[test.labels == SHOWN_DIGIT][0, 0]
    with friendly_os_errors(folder):
        _save(picture, shown.repeat(ENLARGED, 0).repeat(ENLARGED, 1))
        for number, name in enumerate(train.classes):
            (photos / name).mkdir(parents=True, exist_ok=True)
            for i, image in enumerate(train.inputs[train.labels == number][:PER_CLASS, 0]):
                _save(photos / name / f"{i:02}.png", image[:, ::-1])
    return picture, photos


def _save(path: Path, pixels: np.ndarray) -> None:
    """Write a gray picture."""
    import io

    import numpy as np
    from PIL import Image

    from tinysubnets.files import atomic_write

    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, "png")
    atomic_write(path, encoded.getvalue())
