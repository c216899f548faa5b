"""Which parameters of a test `make quick` tries; `make test` tries all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All values, marked slow but for those in `quick`."""
    given = list(values)
    assert all(value in given for value in quick), "a quick value is none of the values"
    return [
        value
        if value in quick
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for value in given
    ]
