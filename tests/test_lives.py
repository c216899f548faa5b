"""Some lives of models, the same every time; `make lives` goes on from there."""

from __future__ import annotations

import pytest

import lives


@pytest.mark.parametrize("number", [5, 1])  # with other data for one task; each step from a file
def test_a_model_stays_right_all_its_life(number: int) -> None:
    assert lives.run_one(0, number, lambda _: None) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 3, 4, 6, 8, 10, 12, 13])
def test_models_stay_right_all_their_lives(number: int) -> None:
    assert lives.run_one(0, number, lambda _: None) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_models_that_nothing_was_trained_for_stay_right(number: int) -> None:
    assert lives.untrained(0, number) >= 15


def test_a_model_that_does_not_stay_right_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that changes what a task computes, by a bit, ends the life in which it happens."""
    rename = lives.SubnetStore.rename

    def broken(store: lives.SubnetStore, old: str, new: str) -> None:
        rename(store, old, new)
        for bank in store.banks:
            bank.values = bank.values * 1.0000002

    monkeypatch.setattr(lives.SubnetStore, "rename", broken)
    monkeypatch.setattr(lives.Life, "STEPS", {"learn": 1, "rename": 1})
    with pytest.raises(AssertionError):
        for number in range(3):
            lives.run_one(0, number, lambda _: None)
