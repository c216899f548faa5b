"""Load every file of a folder and print the memory it took at most; run by the hostile tests."""

from __future__ import annotations

import sys
from pathlib import Path

from tinysubnets.errors import ArtifactError
from tinysubnets.model.store import SubnetStore


def memory_bytes(line: str) -> int:
    """The memory of this process: "VmRSS" now, "VmHWM" at its peak."""
    return int(Path("/proc/self/status").read_text().split(f"{line}:")[1].split()[0]) * 1024


def main(folder: Path) -> None:
    SubnetStore.load(folder / "good")  # what a first load costs is not the forger's
    before, refused = memory_bytes("VmRSS"), 0
    for path in sorted(folder.iterdir()):
        try:
            SubnetStore.load(path)
        except ArtifactError:
            refused += 1
    print(refused, memory_bytes("VmHWM") - before)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
