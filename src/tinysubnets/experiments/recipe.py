"""Recipes: everything but the seed that fixes a run's numbers, as TOML files in the package.

    scenario = "permuted-digits"     a name of `tsn list`, or "own" with tables [tasks.NAME]
    method = "tsn"
    [data]                           settings of the scenario
    [network]                        a name, and the settings of that network; head, the name of its
                                     last layer; pretrained = true or weights = "FILE"; and
                                     base = "frozen" to learn tasks over these weights, which
                                     embed_base = true puts into the model
    [tsn]                            settings of the method; each method has its own table
    [training]  [pruning]  [routing]
    [search]                         what `tsn search` tries; nothing else looks at it

A bare scenario name means its recipe `best/<scenario>`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets import __version__, config, files, scenarios, seeds
from tinysubnets.errors import SettingError, unknown
from tinysubnets.experiments import methods as learners
from tinysubnets.experiments.metrics import MATRICES, MatrixKind
from tinysubnets.experiments.run_dir import FORMAT

if TYPE_CHECKING:
    from tinysubnets.method.base import Learner
    from tinysubnets.nn.architecture import Architecture
    from tinysubnets.tasks.task import Task

DEFAULT = "best/permuted-digits"
FEW_IMAGES = 2000  # training images up to which a small network is chosen
_PLAIN = ("scenario", "method")
_TABLES = ("data", "network", "training", "pruning", "routing", "search")


@dataclass(frozen=True)
class Recipe:
    """A recipe with all its settings, defaults included; `learner` are those of the method."""

    name: str
    scenario: str
    method: str
    data: Mapping[str, Any]
    network: Mapping[str, Any]
    learner: Mapping[str, Any]
    training: Mapping[str, Any]
    pruning: Mapping[str, Any]
    routing: Mapping[str, Any]

    @property
    def short_name(self) -> str:
        """The name as a part of paths: of the user's own file, or such as best-split-cifar100."""
        return Path(self.name).stem if self.name.endswith(".toml") else self.name.replace("/", "-")

    def as_dict(self) -> dict[str, Any]:
        """The recipe as nested tables, in the form of a recipe file."""
        return {
            "scenario": self.scenario,
            "method": self.method,
            "data": dict(self.data),
            "network": dict(self.network),
            learners.method(self.method).table: dict(self.learner),
            "training": dict(self.training),
            "pruning": dict(self.pruning),
            "routing": dict(self.routing),
        }


def names() -> tuple[str, ...]:
    """The recipes that come with the package, as `best/…` and `paper/…`."""
    found = []
    for folder in ("best", "paper"):
        for file in resources.files("tinysubnets").joinpath("recipes", folder).iterdir():
            if file.name.endswith(".toml"):
                found.append(f"{folder}/{file.name.removesuffix('.toml')}")
    return tuple(sorted(found))


def load(
    name: str | None = None, *, method: str | None = None, assignments: Iterable[str] = ()
) -> Recipe:
    """A recipe by name or from a TOML file, with another method and settings laid over it."""
    label, values = read(name or DEFAULT)
    given = list(assignments)
    named = config.override(values, [a for a in given if a.partition("=")[0].strip() in _PLAIN])
    method = method or str(named.get("method", "tsn"))
    values = config.override(values, [placed(a, method) for a in given])
    return complete(label, values | {"method": method})


def placed(assignment: str, method: str) -> str:
    """The assignment `key=value` with its key's table: `epochs=5` is `training.epochs=5`.

    A key that no table of the method or of training and pruning has stays as it is.
    """
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.training.settings import TrainingSettings

    key = assignment.partition("=")[0].strip()
    if "." in key or key in (*_PLAIN, *_TABLES) or method not in learners.METHODS:
        return assignment
    tables = {
        learners.method(method).table: learners.settings_class(method),
        "training": TrainingSettings,
        "pruning": PruningSettings,
    }
    for table, cls in tables.items():
        if key in {f.name for f in fields(cls)}:
            return f"{table}.{assignment.strip()}"
    return assignment


def _instead(folder: Path) -> str:
    """What to do with a folder that was given as a recipe."""
    if (folder / "config.toml").is_file():
        return f"`tsn resume {folder}` goes on with that run; its recipe is {folder}/config.toml."
    if (folder / "model.safetensors").is_file():
        return f"`tsn learn {folder} --task NAME --data FOLDER` teaches that model a task."
    return "write a TOML file that lists your tasks, one folder of classes each, and give that."


def read(name: str) -> tuple[str, dict[str, Any]]:
    """A recipe's full name and its tables as they are written."""
    if name.endswith(".toml"):
        return name, _read_file(Path(name).expanduser())
    full = name if "/" in name else f"best/{name}"
    known = names()
    if full not in known and Path(name).is_file():
        raise SettingError(f"{name}: a recipe is a TOML file, with a name that ends in .toml.")
    if full not in known and Path(name).suffix:
        raise SettingError(f"there is no file {name}.{_near_file(Path(name).expanduser())}")
    if full not in known and Path(name).is_dir():
        raise SettingError(f"{name} is a folder, not a recipe: {_instead(Path(name))}")
    if full not in known:
        short = [n.removeprefix("best/") for n in known if n.startswith("best/")]
        raise SettingError(
            unknown("scenario or recipe", name, known if "/" in name else short)
            + " Your own is a TOML file, given by its path."
        )
    file = resources.files("tinysubnets").joinpath("recipes", f"{full}.toml")
    return full, tomllib.loads(file.read_text(encoding="utf-8"))


def _read_file(path: Path) -> dict[str, Any]:
    """The user's file; paths in its tasks are meant from where it lies."""
    try:
        values = tomllib.loads(files.read(path).decode("utf-8"))
    except OSError as error:
        near = "" if path.exists() else _near_file(path)
        raise SettingError(f"cannot read the recipe {path}: {error.strerror}.{near}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}.") from error
    if isinstance(network := values.get("network"), dict):
        values["network"] = _anchored(network, path.parent, "weights")
    tasks = values.pop("tasks", None)
    if tasks is not None:
        if not isinstance(tasks, Mapping) or not all(isinstance(t, dict) for t in tasks.values()):
            raise SettingError(f"{path}: tasks are tables named [tasks.NAME], one for each task.")
        values.setdefault("scenario", "own")
        values.setdefault("data", {})["tasks"] = {
            name: _anchored(table, path.parent, "data") for name, table in tasks.items()
        }
    return values


def _near_file(path: Path) -> str:
    """A hint at the recipe in the same folder whose name is most like the given one."""
    found = [file.name for file in path.parent.glob("*.toml")]
    close = get_close_matches(path.name, found, n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _anchored(table: Mapping[str, Any], folder: Path, key: str) -> dict[str, Any]:
    """A table with a relative path below that key, if it exists there, made absolute."""
    path = table.get(key)
    if isinstance(path, str) and (folder / Path(path).expanduser()).exists():
        return dict(table) | {key: str((folder / Path(path).expanduser()).resolve())}
    return dict(table)


def complete(name: str, values: Mapping[str, Any]) -> Recipe:
    """The recipe with every setting checked and every default written out."""
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.model.routing import RoutingSettings
    from tinysubnets.training.settings import TrainingSettings

    given = {k: v for k, v in values.items() if k != "run"}  # a run's config.toml is a recipe too
    _check_keys(given)
    if given.get("scenario") == "own" and "run" not in values:
        given = config.merge(fitting_few_samples(), given)
    scenario, method = str(given.get("scenario", "")), str(given.get("method", "tsn"))
    if not scenario:
        raise SettingError(f'{name}: no scenario. Write scenario = "…" or tables [tasks.NAME].')
    entry = learners.method(method)
    own = config.merge(given.get(entry.table, {}), entry.overlay)
    return Recipe(
        name,
        scenario,
        method,
        config.to_dict(scenarios.settings(scenario, given.get("data"))),
        _network(given.get("network", {})),
        _without_seed(config.build(learners.settings_class(method), own, entry.table)),
        config.to_dict(config.build(TrainingSettings, given.get("training"), "training")),
        config.to_dict(config.build(PruningSettings, given.get("pruning"), "pruning")),
        config.to_dict(config.build(RoutingSettings, given.get("routing"), "routing")),
    )


def fitting_few_samples() -> dict[str, Any]:
    """Settings that fit tasks of few samples and change nothing for others; for one's own data."""
    from tinysubnets.tasks.task import FEW_VALID

    return {"training": {"kept_epoch": "auto"}, "pruning": {"min_valid": FEW_VALID}}


def _network(given: Mapping[str, Any]) -> dict[str, Any]:
    """The table of the network; a file of weights by its whole path, wherever one goes on from."""
    out = {"name": "auto"} | dict(given)
    weights = out.get("weights")
    if isinstance(weights, str) and Path(weights).expanduser().is_file():
        out["weights"] = str(Path(weights).expanduser().resolve())
    return out


LISTED_BY = "tsn settings"
_ALL_LISTED = f" `{LISTED_BY}` lists all."


def _check_keys(given: Mapping[str, Any]) -> None:
    """Refuse keys that mean nothing, in the tables of methods that are not used as well."""
    tables = {learners.method(m).table: m for m in learners.METHODS}
    known = (*_PLAIN, *_TABLES, *tables)
    for key, value in given.items():
        if key == "tasks":
            raise SettingError("tasks are listed in a recipe file of your own, as [tasks.NAME].")
        if key not in known:
            said = unknown("setting", key, (*known, "tasks"), LISTED_BY)  # a file's [tasks.NAME]
            near = _whole_name(key, tables, str(given.get("scenario", "")))
            raise SettingError(said.removesuffix(_ALL_LISTED) + (near or _ALL_LISTED))
        if key not in _PLAIN and not isinstance(value, Mapping):
            raise SettingError(f"{key} = {value!r} is not allowed; it is a table of settings.")
        if key in tables:
            if "seed" in value:
                raise SettingError(f"{key}.seed is not a setting of a recipe; use --seed.")
            config.build(learners.settings_class(tables[key]), value, key)


def _whole_name(key: str, tables: Mapping[str, str], scenario: str) -> str:
    """A hint for a setting that was given without its table, maybe misspelled.

    Those of the scenario's data are named, too; what they mean depends on it.
    """
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.model.routing import RoutingSettings
    from tinysubnets.training.settings import TrainingSettings

    classes: dict[str, Any] = {"training": TrainingSettings, "pruning": PruningSettings}
    classes |= {"routing": RoutingSettings}
    if scenario in scenarios.SCENARIOS:
        classes |= {"data": scenarios.entry(scenario).kind}
    classes |= {"tsn": learners.settings_class(tables["tsn"])}
    whole = {f.name: f"{t}.{f.name}" for t, c in reversed(classes.items()) for f in fields(c)}
    if key in whole:
        return f" There is a setting {whole[key]!r};{_ALL_LISTED}"
    if any(key in {f.name for f in fields(e.kind)} for e in scenarios.SCENARIOS.values()):
        return f" Other scenarios have 'data.{key}', {scenario!r} has not;{_ALL_LISTED}"
    close = get_close_matches(key, whole, n=1)
    return f" There is a setting {whole[close[0]]!r};{_ALL_LISTED}" if close else ""


def _without_seed(settings: Any) -> dict[str, Any]:
    return {k: v for k, v in config.to_dict(settings).items() if k != "seed"}


# --------------------------------------------------------------------------------------------------
# The plan of a run: a recipe, a seed and a machine; what `config.toml` holds.


CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Plan:
    """What is to be run: a recipe, a seed, and where.

    `threads` None means one for small networks and torch's own choice for others.

    `data` is the local folder of data sets. `checkpoint_seconds` is the least time between two
    checkpoints. `matrix` says which cells of the accuracy matrix are measured, one of
    `metrics.MATRICES`; None measures every cell of up to 50 tasks, and "diagonal" of more.
    """

    recipe: Recipe
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    data: str | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    matrix: MatrixKind | None = None

    def __post_init__(self) -> None:
        if self.matrix is not None and self.matrix not in MATRICES:
            raise SettingError(unknown("matrix", str(self.matrix), MATRICES))
        if self.threads is not None:
            config.check_threads(self.threads)
        if not -(2**63) <= self.seed < 2**63:
            raise SettingError(f"seed = {self.seed} is not allowed; give a number of 64 bits.")
        if not self.checkpoint_seconds >= 0:
            raise SettingError(
                f"checkpoint_seconds = {self.checkpoint_seconds} is not allowed; give 0 or more."
            )

    def as_dict(self) -> dict[str, Any]:
        """The plan as `config.toml` has it: a recipe with a table [run]."""
        import torch

        run = {
            "format": FORMAT,
            "library": __version__,
            "torch": torch.__version__,
            "recipe": self.recipe.name,
            "seed": self.seed,
            "device": self.device,
            "threads": self.threads,
            "data": self.data,
            "checkpoint_seconds": self.checkpoint_seconds,
            "matrix": self.matrix,
        }
        values = self.recipe.as_dict()
        plain = {k: values.pop(k) for k in ("scenario", "method")}
        return plain | {"run": run} | values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """The plan of a `config.toml`."""
        run = values["run"]
        given: dict[str, Any] = {
            k: None if run[k] == "none" else run[k]
            for k in ("seed", "device", "threads", "data", "checkpoint_seconds")
        }
        given["matrix"] = run.get("matrix", "full")  # runs of before had no other
        given["matrix"] = None if given["matrix"] == "none" else given["matrix"]
        return cls(complete(run["recipe"], values), **given)


def build_architecture(recipe: Recipe, shape: tuple[int, ...], seed: int) -> Architecture:
    """The recipe's network; "auto" chooses one for the inputs.

    - `shape`: that of all training inputs of the first task: how many, and what each looks like.
    """
    import torch

    from tinysubnets import networks
    from tinysubnets.nn.architecture import Architecture

    given = {k: v for k, v in recipe.network.items() if k != "embed_base"}
    name, head, base = str(given.pop("name")), given.pop("head", None), given.pop("base", None)
    weights = given.pop("weights", None)
    is_pretrained = weights is not None or bool(given.get("pretrained")) or base is not None
    settings = {k: v for k, v in given.items() if k != "pretrained" or ":" in name}
    if name == "auto":
        name, settings = _network_for(shape, settings)
    # Forked and seeded: weights of the network matter where learning starts from them.
    with torch.random.fork_rng(devices=[]):
        seeds.seed_torch_(seed)
        if is_pretrained:
            is_base = base is not None
            net = networks.pretrained(name, weights, base=is_base, head=head, **settings)
            if is_base and weights is None:
                networks.check_repeats(name, net, head, **settings)
        else:
            net = networks.build(name, **settings)
    settings.pop("pretrained", None)
    rebuild = {"network": name, "settings": settings}
    return Architecture(net, head, rebuild=rebuild, base=base)


def build_learner(
    recipe: Recipe, architecture: Architecture, *, device: str, seed: int
) -> Learner:
    """A new learner by the recipe's method and settings."""
    return learners.build(
        recipe.method,
        architecture,
        settings=recipe.learner,
        training=recipe.training,
        pruning=recipe.pruning,
        routing=recipe.routing,
        device=device,
        seed=seed,
    )


def as_expected(task: Task, learner: Learner) -> Task:
    """A task normalized as the pretrained network that it is learned with expects its images."""
    expected = learner.architecture.expected_inputs
    uses = learner.architecture.base is not None or learner.settings.init == "pretrained"
    if expected is None or not uses:
        return task
    sample = task.train.inputs(slice(0, 1))
    fits = str(sample.dtype) == "torch.uint8" and sample.ndim == 4
    if not fits or sample.shape[1] != expected.channels:
        return task
    return replace(task, normalization=expected.normalization)


def _network_for(shape: tuple[int, ...], given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A network for inputs of that shape: convolutions for images, else fully connected."""
    if len(shape) == 4 and shape[2] == shape[3] >= 18:
        if shape[0] < FEW_IMAGES:
            # Pooled down to 4 to 7 pixels, whatever the size: the weights do not grow with it.
            convolutions = (shape[2] // 4).bit_length() - 1
            small = {"in_channels": shape[1], "image_size": shape[2], "convolutions": convolutions}
            return "small-cnn", small | given
        return "alexnet", {"in_channels": shape[1], "image_size": shape[2], "hidden": 512} | given
    features = 1
    for size in shape[1:]:
        features *= size
    return "mlp", {"in_features": features, "hidden": [100, 100]} | given


def default_folder(recipe: Recipe, seed: int, base: str | Path = "runs") -> Path:
    """The first unused folder `runs/<recipe>/<method>/seed-<n>`."""
    return unused(Path(base) / recipe.short_name / recipe.method / f"seed-{seed}")


def unused(first: Path) -> Path:
    """The folder; if it holds a run, the first one with a number behind that does not."""
    path, number = first, 1
    while (path / "config.toml").exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path
