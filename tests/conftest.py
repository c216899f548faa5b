"""Settings that all tests share: few threads, because small tensors crawl under contention."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Read when Triton is first imported, which any test that compiles or exports may do.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _quiet_global_generator() -> None:
    """Each test starts from the same global generator, though no result may depend on it."""
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly, as the last thing, that pages were not opened in a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum("CHROMIUM IS MISSING" in str(report.longrepr) for report in skipped):
        text = f"CHROMIUM IS MISSING: {count} tests of pages in a browser were SKIPPED"
        terminalreporter.write_sep("!", text, red=True, bold=True)
