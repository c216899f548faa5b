"""Settings that all tests share: few threads, because small tensors crawl under contention."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# No example is refused because the machine is slow or busy.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
if not torch.cuda.is_available():
    # Read when Triton is first imported, which any test that compiles or exports may do.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _quiet_global_generator() -> None:
    """Each test starts from the same global generator, though no result may depend on it."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "without slow tests, and at most two parameters of each of the others"
    parser.addoption("--quick", action="store_true", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make quick` leaves out."""
    if not config.getoption("--quick"):
        return
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.get_closest_marker("slow") is None and seen[test] < 2:
            seen[test] += 1
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly, as the last thing, that pages were not opened in a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum("CHROMIUM IS MISSING" in str(report.longrepr) for report in skipped):
        text = f"CHROMIUM IS MISSING: {count} tests of pages in a browser were SKIPPED"
        terminalreporter.write_sep("!", text, red=True, bold=True)
