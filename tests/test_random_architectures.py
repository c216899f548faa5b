"""Random networks are refused before training or forget nothing; a few of many cases."""

from __future__ import annotations

import pytest

from random_architectures import run_case


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 5))
def test_refused_or_remembered(first: int) -> None:
    results = [run_case(number) for number in range(first, first + 5)]
    assert all(r == "worked" or "refused" in r for r in results)


@pytest.mark.slow
def test_most_networks_are_learned() -> None:
    """The check above can fail to say anything: here it must not."""
    assert [run_case(number) for number in range(100, 120)].count("worked") >= 10
