"""Finding the parquet files of a Hub repository: a local folder first, then the Hub itself.

A local folder has the Hub's own layout, `<root>/<owner>/<name>/<file of the repository>`. Files
that huggingface_hub has downloaded before are used without asking the network again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinysubnets.errors import DataError, install_command

ROOT_VARIABLE = "TINYSUBNETS_DATA"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Found:
    """The files of one split, in order, and the place they were found in, in words."""

    files: tuple[Path, ...]
    where: str


def is_local_only(repo: str) -> bool:
    """Whether a repository exists in local folders only; the Hub has no owner named `local`."""
    return repo.startswith("local/")


def find(repo: str, patterns: Sequence[str], root: str | Path | None = None) -> Found | None:
    """The files of the first pattern that is complete on this machine, or None."""
    folder = data_root(root)
    if folder is not None:
        files = _complete(folder / repo, patterns)
        if files:
            return Found(files, str(folder / repo))
    snapshot = _snapshot(repo)
    if snapshot is not None:
        files = _complete(snapshot, patterns)
        if files:
            return Found(files, f"Hugging Face cache, {repo}")
    return None


def locate(repo: str, patterns: Sequence[str], root: str | Path | None = None) -> tuple[Path, ...]:
    """The files of the first pattern that exists; downloads them where they are not here yet."""
    found = find(repo, patterns, root)
    if found is not None:
        return found.files
    if is_local_only(repo):
        raise DataError(_missing(repo, patterns, root, None))
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(_missing(repo, patterns, root, error)) from error
    try:
        folder = snapshot_download(repo, repo_type="dataset", allow_patterns=list(patterns))
    # The Hub's client fails in many ways (offline, no such repository, gated, broken connection),
    # and its exception types move between versions; all of them mean that the files are missing.
    except Exception as error:
        raise DataError(_missing(repo, patterns, root, error)) from error
    files = _complete(Path(folder), patterns)
    if not files:
        raise DataError(_missing(repo, patterns, root, None))
    return files


def data_root(root: str | Path | None = None) -> Path | None:
    """The local folder of data sets: the argument, else the environment's, else none."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE)
    return Path(given).expanduser() if given else None


def _complete(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    """The files of the first pattern of which no shard is missing."""
    for pattern in patterns:
        files = tuple(sorted(folder.glob(pattern)))
        if files and not _absent(files):
            return files
    return ()


def _absent(files: Sequence[Path]) -> list[str]:
    """The shards that `-00000-of-00002` in the names promises and that are not there."""
    missing: list[str] = []
    for total in {m[2] for f in files if (m := _SHARD.search(f.name))}:
        named = {m[1]: f for f in files if (m := _SHARD.search(f.name)) and m[2] == total}
        stem = _SHARD.split(next(iter(named.values())).name)[0]
        wanted = (f"{index:05d}" for index in range(int(total)))
        missing += [f"{stem}-{index}-of-{total}*.parquet" for index in wanted if index not in named]
    return missing


def _snapshot(repo: str) -> Path | None:
    """The folder of the newest snapshot in huggingface_hub's cache, without importing it."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    hub_cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    folder = hub_cache / f"datasets--{repo.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def not_a_folder(data: str, cause: BaseException | None) -> str:
    """The message for a name that is no folder, and that the Hub did not give either.

    Who lists folders means one far more often than a repository that is called like its path.

    - `cause`: why the Hub did not; None where it was not asked.
    """
    why = "not fetched" if cause is None else f"not fetched ({type(cause).__name__})"
    if isinstance(cause, ImportError):
        why = f"not fetched: that needs huggingface_hub, by {install_command('data')}"
    return (
        f"{data} is not a folder. Or do you mean the data set "
        f"https://huggingface.co/datasets/{data}? It is not on this machine, and was {why}."
    )


def _missing(
    repo: str, patterns: Sequence[str], root: str | Path | None, cause: Exception | None
) -> str:
    """The message for files that could not be had: which, where they were looked for, the cures."""
    folder = data_root(root)
    lines = [f"data set {repo} is missing: no complete {' or '.join(patterns)}."]
    if folder is None:
        lines.append(f"No local folder was given (--data, {ROOT_VARIABLE}).")
    else:
        lines.append(f"Looked in {folder / repo}.")
        present = [f for pattern in patterns for f in sorted((folder / repo).glob(pattern))]
        if present:
            lines.append(f"There, of the shards, these are missing: {', '.join(_absent(present))}.")
    target = f"DIR/{repo}/{patterns[0]}"
    if is_local_only(repo):
        lines.append("It is a local data set, which the Hub does not have.")
        lines.append(f"Put its files at {target} and pass --data DIR or set {ROOT_VARIABLE}=DIR.")
        return "\n".join(lines)
    if cause is not None:
        first_line = (str(cause).strip().splitlines() or [""])[0]
        lines.append(f"The Hugging Face Hub did not help: {type(cause).__name__}: {first_line}")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        lines.append("HF_HUB_OFFLINE is set, so nothing was downloaded.")
    lines += [
        "Two ways to provide it:",
        f"  1. put the files at {target} and pass --data DIR or set {ROOT_VARIABLE}=DIR;",
        f"  2. let it be downloaded from https://huggingface.co/datasets/{repo}: network access,",
        "     HF_HUB_OFFLINE unset, and huggingface_hub, which this installs:",
        f"     {install_command('data')}",
    ]
    return "\n".join(lines)
