"""Settings: built from dictionaries, checked, overridden by key=value, kept as TOML."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tinysubnets import config
from tinysubnets.errors import SettingError
from tinysubnets.experiments import methods
from tinysubnets.method.pruning import PruningSettings
from tinysubnets.training.settings import TrainingSettings


@dataclass(frozen=True)
class Inner:
    flip: bool = False
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    epochs: int = 3
    rate: float = 0.5
    limit: int | None = None
    bits: Literal["auto"] | int = "auto"
    kind: Literal["adam", "sgd"] = "adam"
    inner: Inner = field(default_factory=Inner)
    tasks: dict[str, Any] = field(default_factory=dict)


def test_defaults_and_nested_tables() -> None:
    assert config.build(Outer) == Outer()
    built = config.build(Outer, {"epochs": 5, "inner": {"sizes": [4]}, "rate": 1})
    assert built == Outer(epochs=5, rate=1.0, inner=Inner(sizes=(4,)))
    assert isinstance(built.rate, float)
    assert config.build(Outer, built) is built


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_numbers_that_no_file_has_a_word_for_are_refused(value: float) -> None:
    for given in (
        {"rate": value},
        {"limit": value},
        {"tasks": {"a": {"deep": [1.0, value]}}},
    ):
        with pytest.raises(SettingError, match=r"= -?(inf|nan) is not allowed; .* finite"):
            config.build(Outer, given)
    with pytest.raises(SettingError, match=r"t\.rate = .* finite"):
        config.build(Outer, Outer(rate=value), "t")
    with pytest.raises(SettingError, match=r"rate = 10+ is not allowed; expected a number"):
        config.build(Outer, {"rate": 10**400})


def test_no_method_takes_a_number_that_it_could_not_save() -> None:
    classes = {methods.settings_class(m) for m in methods.METHODS}
    tried = 0
    for cls in (*classes, TrainingSettings, PruningSettings):
        for setting in config.documented(cls):
            if isinstance(setting.default, float):
                tried += 1
                for value in (float("inf"), float("nan")):
                    with pytest.raises(SettingError, match=setting.key):
                        config.build_with(cls, {setting.key: value})
    assert tried > 30


def test_unknown_keys_name_the_nearest_one() -> None:
    with pytest.raises(SettingError, match=r"'training\.epoch'.*Did you mean 'training\.epochs'"):
        config.build(Outer, {"epoch": 5}, "training")
    with pytest.raises(SettingError, match=r"inner\.flips.*inner\.flip"):
        config.build(Outer, {"inner": {"flips": True}})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epochs": 1.5}, "epochs = 1.5 is not allowed; expected an integer"),
        ({"epochs": True}, "integer"),
        ({"epochs": "five"}, "integer"),
        ({"rate": "fast"}, "expected a number"),
        ({"rate": False}, "expected a number"),
        ({"kind": "adagrad"}, "choose one of 'adam', 'sgd'"),
        ({"bits": "automatic"}, "bits = 'automatic'"),
        ({"inner": 5}, "inner: expected a table"),
        ({"inner": {"sizes": [1, "two"]}}, r"inner\.sizes"),
        ({"inner": {"flip": 1}}, "true or false"),
        ({"limit": "many"}, "limit"),
    ],
)
def test_wrong_values_say_what_is_allowed(values: dict, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        config.build(Outer, values)


def test_none_is_written_as_a_word() -> None:
    assert config.build(Outer, {"limit": "none"}).limit is None
    assert config.build(Outer, {"limit": 4}).limit == 4
    assert config.to_dict(Outer())["limit"] == "none"


def test_overrides_read_values_as_toml_and_leave_the_original_alone() -> None:
    before = {"training": {"epochs": 3}, "scenario": "x"}
    after = config.override(
        before,
        ["training.epochs=5", "training.rate = 1e-3", "network.hidden=[10, 20]", "method=tsn-wr"],
    )
    assert after["training"] == {"epochs": 5, "rate": 1e-3}
    assert after["network"] == {"hidden": [10, 20]}
    assert after["method"] == "tsn-wr"
    assert before == {"training": {"epochs": 3}, "scenario": "x"}
    assert config.override({}, ["a=true", 'b="5"', "c=x=y"]) == {"a": True, "b": "5", "c": "x=y"}


@pytest.mark.parametrize("wrong", ["epochs", "=5", ".epochs=5", "training..epochs=5"])
def test_assignments_that_cannot_be_read(wrong: str) -> None:
    with pytest.raises(SettingError, match="key=value"):
        config.override({}, [wrong])


def test_a_value_is_no_table() -> None:
    with pytest.raises(SettingError, match="not a table"):
        config.override({"method": "tsn"}, ["method.epochs=5"])


def test_merge_goes_into_tables() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert config.merge(base, {"a": {"y": 5}, "c": 1}) == {"a": {"x": 1, "y": 5}, "b": 3, "c": 1}
    assert config.merge(base, {"a": 7})["a"] == 7
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}


def test_toml_comes_back_as_it_was() -> None:
    values = {
        "name": 'a "quoted"\\ text\nof two lines',
        "on": True,
        "rate": 1e-05,
        "sizes": [1, 2],
        "inner": {"deep": {"x": 1}, "odd key!": "v"},
        "empty": {},
    }
    assert tomllib.loads(config.to_toml(values)) == values
    settings = config.to_dict(Outer(limit=3, tasks={"a": {"data": "x"}}))
    assert config.build(Outer, tomllib.loads(config.to_toml(settings))) == Outer(
        limit=3, tasks={"a": {"data": "x"}}
    )
    with pytest.raises(SettingError, match="cannot write"):
        config.to_toml({"a": object()})


def test_every_renamed_setting_exists_today_and_its_old_name_is_an_error() -> None:
    for old, new in config.RENAMED.items():
        table, _, key = new.rpartition(".")
        values = {old.rpartition(".")[2]: 1}
        for name in (table, ""):  # in a recipe, and as an argument
            with pytest.raises(SettingError, match=f"is called '{name and name + '.'}{key}' now"):
                config.build(settings_of(table), values, name)


def settings_of(table: str) -> type:
    if table == "training":
        return TrainingSettings
    return methods.settings_class(table)


def test_old_values_are_errors_that_tell_the_new_ones() -> None:
    for path, values in config.RENAMED_VALUES.items():
        table, _, key = path.rpartition(".")
        for old, new in values.items():
            with pytest.raises(SettingError, match=f"is called '{new}' now"):
                config.build(settings_of(table), {key: old}, table)


def test_settings_of_an_older_version_are_read() -> None:
    old = {
        "scenario": "split-digits",
        "tsn": {"balance": 0.5, "scores": "warm", "init": "given", "density": 0.2},
        "training": {"learning_rate": 0.1, "augmentation": {"flip": True}},
        "naive": {"setting": "class"},
    }
    assert config.modernized(old) == {
        "scenario": "split-digits",
        "tsn": {
            "density_exponent": 0.5,
            "score_init": "previous_mask",
            "init": "pretrained",
            "density": 0.2,
        },
        "training": {"lr": 0.1, "augmentation": {"flip": True}},
        "naive": {"scenario_type": "class-IL"},
    }
    assert config.modernized(config.modernized(old)) == config.modernized(old)


def test_settings_of_tables_may_be_given_by_their_bare_names() -> None:
    def built(training: Any = None, **settings: Any) -> tuple[Any, ...]:
        return config.build_with(Inner, settings, training=(Outer, training))

    assert built(flip=True, epochs=5) == (Inner(flip=True), Outer(epochs=5))
    assert built({"rate": 1}, epochs=5) == (Inner(), Outer(epochs=5, rate=1.0))
    assert built(Outer(rate=1.0, kind="sgd"), epochs=5)[1] == Outer(5, 1.0, kind="sgd")
    with pytest.raises(SettingError, match=r"given twice: epochs=5 and training=\{'epochs': 4\}"):
        built({"epochs": 4}, epochs=5)
    with pytest.raises(SettingError, match=r"unknown setting 'epoch'. Did you mean 'epochs'"):
        built(epoch=5)
    with pytest.raises(SettingError, match=r"training\.epochs = 1\.5 is not allowed"):
        built(epochs=1.5)


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_takes_settings_of_training_by_their_bare_names(method: str) -> None:
    from nets import mlp
    from tinysubnets.nn.architecture import Architecture

    make: Any = methods.learner_class(method)
    learner = make(Architecture(mlp()), epochs=3, seed=5)
    assert (learner.training.epochs, learner.settings.seed) == (3, 5)
    with pytest.raises(SettingError, match="called 'lr' now"):
        make(Architecture(mlp()), learning_rate=0.1)


def test_numbers_may_be_as_short_as_in_python() -> None:
    given = ["a=.1", "b=1.", "c=-.5e-3", "d=.1.2", "e=.", "f=0.1"]
    found = config.override({}, given)
    assert found == {"a": 0.1, "b": 1.0, "c": -0.0005, "d": ".1.2", "e": ".", "f": 0.1}
