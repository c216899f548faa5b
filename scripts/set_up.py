"""Set up .venv for `make`: show what will be fetched and how large it is, then install it.

    python3 scripts/set_up.py report --with pillow --take-torch
    python3 scripts/set_up.py all,dev --torch cpu

Needs nothing but Python's own library. System packages are never touched.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own builds without CUDA
LINK = "torch_of_the_environment.pth"
MAX_SHOWN = 8  # packages that are named one by one


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", help="extras of the package, with commas between them")
    parser.add_argument("--with", nargs="*", default=[], dest="others", help="further packages")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="default: .venv")
    parser.add_argument(
        "--torch",
        choices=("", "cpu"),
        default="",
        help=f"cpu: PyTorch's build without CUDA, from {CPU_INDEX}",
    )
    parser.add_argument(
        "--take-torch",
        action="store_true",
        help="use the torch of the Python that runs this, where it has a version we work with",
    )
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  (whatever `python3` is)
        sys.exit(f"Python 3.11 or later is needed, this is {sys.version.split()[0]}: PYTHON=…")
    python = made(options.venv)
    pins = pinned()
    if options.torch == "cpu":
        if not (installed(python, "torch") or "").endswith("+cpu"):
            show_and_install(python, [f"torch=={pins['torch']}", "--index-url", CPU_INDEX])
        pins["torch"] = installed(python, "torch") or pins["torch"]
    elif options.take_torch and (version := torch_to_take(python)) is not None:
        pins.pop("triton", None)  # the version that this torch came with
        pins["torch"] = version
    constraints = options.venv / "constraints.txt"
    constraints.write_text("".join(f"{n}=={v}\n" for n, v in pins.items()), encoding="utf-8")
    package = ["-e", f"{ROOT}[{options.extras}]", *options.others]
    show_and_install(python, ["-c", str(constraints), *package])


def made(folder: Path) -> Path:
    """The Python of the virtual environment, which is made where there is none."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    return python


def pinned() -> dict[str, str]:
    """The versions of constraints.txt."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.M))


def installed(python: Path, package: str) -> str | None:
    """The version of a package in an environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def torch_to_take(python: Path) -> str | None:
    """The version of a torch that is there already, linked into the environment if it is outside.

    It is that of the environment itself, or of the Python that runs this script.
    """
    if (version := installed(python, "torch")) is not None:
        return version if is_new_enough(version) else None
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or not is_new_enough(version):
        return None
    outside = Path(found.origin).resolve().parent.parent
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    inside = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    # Behind the environment's own packages, which win.
    (Path(inside.stdout.strip()) / LINK).write_text(f"{outside}\n", encoding="utf-8")
    print(f"torch {version} of {outside} is used; nothing of PyTorch is fetched.")
    return version


def is_new_enough(version: str) -> bool:
    """Whether pyproject.toml allows this version of torch."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = re.search(r'"torch>=([\d.]+)"', text)
    assert least is not None
    return numbers(version) >= numbers(least[1])


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: 2.13.0+cpu is (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def show_and_install(python: Path, arguments: list[str]) -> None:
    """Say what pip is going to fetch, then let it; on a terminal it shows its own progress."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    show(planned([*pip, "--dry-run", "--quiet", "--report", "-"]))
    done = subprocess.run(pip if sys.stdout.isatty() else [*pip, "--quiet"], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def planned(command: list[str]) -> list[tuple[str, int | None, bool]]:
    """The files that pip would fetch: package and version, bytes, and whether they are here."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return []  # pip says why when it is run in earnest
    report = json.loads(done.stdout)
    wheels = [i for i in report["install"] if not i["is_direct"]]
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(described, wheels))


def described(item: dict[str, Any]) -> tuple[str, int | None, bool]:
    """One file of pip's report."""
    name = f"{item['metadata']['name']} {item['metadata']['version']}"
    url = item["download_info"]["url"]
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=15) as head:
            size = int(head.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        size = None
    return name, size, url.startswith("file:")


def show(files: list[tuple[str, int | None, bool]]) -> None:
    """Print what is fetched, the largest first."""
    if not files:
        return
    files = sorted(files, key=lambda f: -(f[1] or 0))
    total = sum(size or 0 for _, size, _ in files)
    unknown = sum(size is None for _, size, _ in files)
    more = f" and {unknown} of unknown size" if unknown else ""
    count = f"{len(files)} package{'s' if len(files) > 1 else ''}"
    print(f"to be installed: {count}, {size_text(total)}{more}")
    for name, size, is_here in files[:MAX_SHOWN]:
        where = "  (on this machine)" if is_here else ""
        print(f"  {name:32} {size_text(size) if size is not None else '?':>8}{where}")
    if rest := files[MAX_SHOWN:]:
        shown = size_text(sum(size or 0 for _, size, _ in rest))
        print(f"  {f'{len(rest)} smaller ones':32} {shown:>8}")
    if any(name.startswith("nvidia-") for name, _, _ in files):
        print(
            "This is PyTorch's build for NVIDIA GPUs. Ctrl-C, then TORCH=cpu takes the small one."
        )
    sys.stdout.flush()


def size_text(size: int) -> str:
    """Bytes as people say them."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1000:.0f} kB"


if __name__ == "__main__":
    main()
