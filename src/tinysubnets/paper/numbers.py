"""The numbers of the paper's tables, as printed there, by the names that runs use.

Accuracies and capacities are in percent, times in seconds, operations in millions.
"""

from __future__ import annotations

SCENARIOS: dict[str, str] = {
    "permuted-mnist": "p-MNIST",
    "split-cifar100": "s-CIFAR100",
    "five-datasets": "5 datasets",
    "tiny-imagenet": "TinyImagenet",
    "imagenet100": "Imagenet100",
}
"""Scenarios by our name, with the paper's."""

NO_DATA = {"five-datasets": "SVHN", "imagenet100": "ImageNet-100"}
"""Scenarios that were not run as they are because a data set was not at hand."""

METHODS: dict[str, str] = {
    "naive": "Naive",
    "cwr-star": "CWRStar",
    "si": "SI",
    "replay": "Replay",
    "cumulative": "Cumulative",
    "packnet": "PackNet",
    "wsn": "WSN",
    "ada-qpacknet": "Ada-QPackNet",
    "tsn-wr": "TSN-wr",
    "tsn-wr-wpp": "TSN-wr-wpp",
    "tsn": "TSN",
    "dytox": "DyTox",
    "der": "DER",
}
"""Methods by our name, with the paper's; DyTox and DER are quoted, not run."""

Numbers = dict[str, dict[str, float]]


def _rows(names: str, rows: dict[str, tuple[float, ...]]) -> Numbers:
    """Rows of numbers under a line of scenario names."""
    columns = names.split()
    return {row: dict(zip(columns, values, strict=True)) for row, values in rows.items()}


_FOUR = "permuted-mnist split-cifar100 five-datasets tiny-imagenet"

CAPACITY = _rows(
    _FOUR,
    {
        "packnet": (96.38, 81.0, 82.86, 188.67),
        "wsn": (77.73, 99.13, 86.10, 48.65),
        "ada-qpacknet": (81.25, 78.6, 33.7, 112.5),
        "tsn-wr": (22.65, 17.62, 24.68, 32.15),
        "tsn-wr-wpp": (23.41, 18.75, 30.62, 36.33),
        "tsn": (37.5, 41.92, 40.08, 93.6),
    },
)

ACCURACY = _rows(
    _FOUR,
    {
        "naive": (60.12, 17.32, 33.08, 20.27),
        "cwr-star": (31.31, 20.84, 36.16, 24.00),
        "si": (57.32, 19.54, 29.42, 20.51),
        "replay": (62.22, 19.60, 55.24, 23.14),
        "cumulative": (96.45, 36.52, 84.44, 27.53),
        "packnet": (96.31, 72.57, 92.59, 55.46),
        "wsn": (96.41, 76.38, 93.41, 71.96),
        "ada-qpacknet": (97.1, 74.1, 94.1, 71.9),
        "tsn-wr": (96.63, 75.21, 91.80, 79.81),
        "tsn": (97.14, 77.27, 93.76, 80.10),
    },
)

ONE_HEAD = ("naive", "cwr-star", "si", "replay", "cumulative")
"""Methods whose rows in the paper have one head and do not know the task."""

SAME_CLASSES = ("permuted-mnist",)
"""Scenarios whose tasks all have the same classes, so that one head is domain-IL."""


def scenario_type(method: str, scenario: str) -> str:
    """The scenario type of a row of the paper's accuracies, which it does not state itself.

    >>> scenario_type("naive", "permuted-mnist"), scenario_type("naive", "split-cifar100")
    ('domain-IL', 'class-IL')
    """
    if method not in ONE_HEAD:
        return "task-IL"
    return "domain-IL" if scenario in SAME_CLASSES else "class-IL"


IMAGENET100: dict[str, tuple[float, float]] = {
    "dytox": (10.73, 75.54),
    "der": (112.27, 75.36),
    "ada-qpacknet": (11.5, 72.26),
    "tsn-wr": (2.47, 77.16),
    "tsn": (4.94, 77.86),
}
"""Millions of parameters and accuracy."""

MEMORY: dict[str, tuple[str, str, str]] = {
    "permuted-mnist": ("9.8", "< 0.1", "12.5"),
    "split-cifar100": ("5.49", "< 0.1", "12.5"),
    "five-datasets": ("14.57", "< 0.1", "10"),
    "tiny-imagenet": ("12.5", "< 0.1", "20"),
    "imagenet100": ("12.5", "< 0.1", "12.5"),
}
"""Weights, codebooks and masks, in percent of the dense model."""

SPARSITY: dict[str, tuple[float, float, int]] = {
    "permuted-mnist": (37.58, 41.2, 4),
    "split-cifar100": (7.22, 11.68, 4),
    "five-datasets": (1.02, 21.02, 4),
    "tiny-imagenet": (2.7, 14.31, 5),
    "imagenet100": (8.5, 10.1, 5),
}
"""Share of weights that no task owns, before and after post-pruning, and the bit-width."""

BIT_WIDTHS: dict[str, dict[int, float]] = {
    "permuted-mnist": {5: 96.85, 4: 96.63, 3: 96.06},
    "split-cifar100": {5: 74.82, 4: 75.14, 3: 75.07},
    "tiny-imagenet": {5: 77.19, 4: 77.16, 3: 68.01},
    "five-datasets": {5: 91.71, 4: 91.80, 3: 90.1},
}

TIMES: dict[str, tuple[float, float]] = {
    "permuted-mnist": (1244, 23.92),
    "split-cifar100": (662, 12.6),
    "tiny-imagenet": (6752, 122.76),
    "imagenet100": (5094, 84.9),
}
"""Seconds of training and of post-pruning on an A100."""

POST_PRUNING: dict[str, tuple[str, str, str]] = {
    "permuted-mnist": ("23.41", "22.65", "37.5*"),
    "split-cifar100": ("18.75", "17.62", "41.92"),
    "tiny-imagenet": ("36.33", "32.15", "93.6"),
    "five-datasets": ("30.62", "24.68", "40.08"),
}
"""Capacity without post-pruning, with it, and with replay memory."""

OPERATION_KINDS = ("4 bit + p", "8 bit + p", "16 bit + p", "4 bit", "8 bit", "16 bit", "float")

OPERATIONS: dict[str, tuple[float, ...]] = {
    "permuted-mnist": (0.97, 3.89, 15.6, 1.62, 6.5, 26, 61.7),
    "split-cifar100": (214.37, 857.5, 3430, 243.6, 974.4, 3897, 8770),
    "tiny-imagenet": (112.72, 450.9, 1803, 132.62, 530.5, 2122, 4775),
}

FIXED_POINT: dict[str, dict[int, float]] = {
    "permuted-mnist": {4: 84.08, 8: 97.06, 16: 97.13},
    "split-cifar100": {4: 70.86, 8: 75.21, 16: 75.46},
    "tiny-imagenet": {4: 75.84, 8: 79.66, 16: 79.70},
    "five-datasets": {4: 85.2, 8: 91.71, 16: 91.78},
}

TRANSFER: dict[str, tuple[float, float | None]] = {
    "permuted-mnist": (0.0, 0.104),
    "split-cifar100": (0.0, 0.010),
    "tiny-imagenet": (0.0, 0.004),
    "five-datasets": (0.0, None),
    "imagenet100": (0.0, None),
}
"""Backward and forward transfer as fractions of 1."""

CASE_STUDY: tuple[tuple[str, int], ...] = (
    ("the original model", 384),
    ("after task 1", 152),
    ("after task 2", 220),
    ("after task 3", 220),
)
"""Bits of the worked example."""
