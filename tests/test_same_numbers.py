"""One short run per method: its numbers are those that were written down, on the same machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quick import mostly_slow

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import same_numbers  # noqa: E402

KEPT = json.loads((ROOT / "tests" / "golden" / "short_runs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "method", mostly_slow(same_numbers.METHODS, ["tsn", "tsn-wr", "wsn", "lwf", "gem", "cwr-star"])
)
def test_a_short_run_gives_the_numbers_that_were_written_down(method: str, tmp_path: Path) -> None:
    """Another processor or build of torch may round matrix products differently."""
    here = same_numbers.machine()
    if here != KEPT["machine"]:
        pytest.skip(f"the numbers are of {KEPT['machine']}, this is {here}")
    name = f"permuted-digits/{method}/0"
    settings = tuple(KEPT["settings"])
    found = same_numbers.run("permuted-digits", method, 0, settings, tmp_path / "run")
    assert same_numbers.differences(KEPT["runs"][name], json.loads(json.dumps(found))) == []
