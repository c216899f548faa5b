"""The pictures of a saved model: who owns and uses which weight, overlaps, codebooks.

A new picture is a function here and its name in `of_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import NO_BANK, CodebookTensor
from tinysubnets.report.charts import WIDTH, Frame, heat_map, ticks
from tinysubnets.report.drawing import NORMAL, SMALL, Drawing, Figure, shortened, text_width
from tinysubnets.report.theme import task_color

T = TypeVar("T")
MAX_OVERLAPS = 64  # tasks of which every pair is compared
CHUNK = 1 << 19  # so many weights at a time take part in the overlap of masks


def of_model(store: SubnetStore) -> list[Figure]:
    """The pictures that need the saved model."""
    makers = (ownership, task_masks, mask_overlap, codebooks)
    return [figure for figure in (make(store) for make in makers) if figure is not None]


def owners(store: SubnetStore, bank: int) -> Tensor:
    """For every weight of a bank the number of its owner, counted from 1; 0 where it is free."""
    owner = torch.zeros(store.layout.num_blocks, dtype=torch.int64)
    for number, subnet in enumerate(store.subnets.values(), 1):
        if subnet.bank == bank:
            owner = torch.where((owner == 0) & subnet.mask, number, owner)
    return store.layout.expand(owner)


def ownership(store: SubnetStore) -> Figure | None:
    """Which task owns which weight: the middle of a few layers of every bank; None without one."""
    if not store.banks:
        return None
    banks = range(min(3, len(store.banks)))
    names = _spread([s.name for s in store.architecture.shared], 3 if len(banks) == 1 else 2)
    rows = 64 if len(banks) * len(names) <= 2 else 32  # fewer of each where there are many
    drawing, top = Drawing(WIDTH, 0, "which task owns which weight"), 26.0
    _task_legend(drawing, len(store.tasks), "owner: task")
    for bank in banks:
        parts = store.architecture.split(owners(store, bank))
        for name in names:
            whole = _as_matrix(parts[name])
            shown = _middle(whole, rows, 110)
            free = float((whole == 0).double().mean())
            place = f"bank {bank}, {name}" if len(store.banks) > 1 else name
            size = " of ".join(f"{m.shape[0]} × {m.shape[1]}" for m in (shown, whole))
            drawing.text(0, top + 16, place, NORMAL, "ink", font_weight=600)
            drawing.text(WIDTH, top + 16, f"{size}, {free:.0%} free", text_anchor="end")
            side = WIDTH / max(60, shown.shape[1])
            top += 44 + _weights(drawing, (0, top + 24), side, shown, len(store.tasks))
    drawing.height = top
    settings = store.settings.get("tsn")  # of another method there are none
    shares = settings.get("sharing", "values") if isinstance(settings, dict) else "values"
    kind = "value-based sharing" if shares == "values" else "disjoint values"
    return Figure(
        "ownership",
        "Which task owns which weight",
        drawing,
        f"Weight matrices, inputs down and outputs across, with {kind}: every weight in the "
        "color of the first task that used it; gray weights are still free.",
    )


def task_masks(store: SubnetStore) -> Figure | None:
    """What each task uses in one layer, every weight in the color of its owner.

    Without a bank, what a task adds to the weights it refers to. None where nobody has any.
    """
    if not any(s.packed_mask.bits.any() for s in store.subnets.values()):
        return None
    reach, count = 42, len(store.tasks)  # weights from side to side, where the layer has so many
    empty = {s.name: torch.empty(s.shape, device="meta") for s in store.architecture.shared}
    shared = {name: _as_matrix(tensor).shape for name, tensor in empty.items()}
    name = max(shared, key=lambda n: min(*shared[n], reach))
    chosen = _spread(range(count), 10)
    across = 5 if len(chosen) > 6 else 3
    room = (WIDTH - 12 * (across - 1)) / across
    height = 26 + -(-len(chosen) // across) * (room + 42)
    drawing = Drawing(WIDTH, height, "what each task uses")
    _task_legend(drawing, count, f"{name}, owner: task")
    owned = [store.architecture.split(owners(store, b))[name] for b in range(len(store.banks))]
    for place, index in enumerate(chosen):
        subnet = store.subnet(store.tasks[index])
        kept = store.architecture.split(store.layout.expand(subnet.mask))[name]
        owner = index + 1 if subnet.bank == NO_BANK else owned[subnet.bank]
        used = torch.where(kept, owner, 0)
        reused = float(((used != index + 1) & kept).sum()) / max(1, int(kept.sum()))
        shown = _middle(_as_matrix(used), reach, reach)
        x, y = (place % across) * (room + 12), 26 + (place // across) * (room + 42)
        end = y + _weights(drawing, (x, y), room / max(shown.shape), shown, count)
        label = shortened(f"{index + 1} {store.tasks[index]}", room * 0.95)
        drawing.text(x, end + 15, label, fill="ink", font_weight=600)
        is_added = subnet.bank == NO_BANK
        drawing.text(x, end + 29, "added" if is_added else f"{reused:.0%} reused")
    return Figure(
        "task-masks",
        "What each task uses",
        drawing,
        "The same part of one layer for each task: its weights in the colors of their owners, "
        "so earlier colors show what was reused.",
    )


def _spread(items: Sequence[T], count: int) -> list[T]:
    """The first, the last and some between, at most `count` (two or more)."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _as_matrix(weights: Tensor) -> Tensor:
    """A layer's weights as inputs × outputs, as the paper draws them."""
    return weights.reshape(weights.shape[0], -1).t()


def _middle(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """The middle of a matrix; edges of images hold little."""
    top = max(0, (matrix.shape[0] - rows) // 2)
    left = max(0, (matrix.shape[1] - columns) // 2)
    return matrix[top : top + rows, left : left + columns]


def _weights(
    drawing: Drawing, place: tuple[float, float], side: float, shown: Tensor, num_tasks: int
) -> float:
    """Weights as squares in the colors of their owners on the gray of free ones; the height."""
    height = shown.shape[0] * side
    drawing.rect(*place, shown.shape[1] * side, height, "grid", fill_opacity=0.45)
    palette = [task_color(i, num_tasks) for i in range(num_tasks)]
    drawing.cells(*place, side, shown.numpy(), palette)
    return height


def _task_legend(drawing: Drawing, num_tasks: int, words: str) -> None:
    """The colors of the tasks in order, with the first and the last number."""
    drawing.text(0, 12, words)
    left = text_width(words) + 8
    numbers = f"1 to {num_tasks}" if num_tasks > 1 else "1"
    width = min(18.0, (WIDTH - left - text_width(numbers) - 6) / num_tasks)
    for i in range(num_tasks):
        color = task_color(i, num_tasks)
        drawing.rect(left, 2, max(0.5, width - 1), 12, color, note=f"task {i + 1}")
        left += width
    drawing.text(left + 6, 12, numbers)


def mask_overlap(store: SubnetStore) -> Figure | None:
    """The share of each task's weights that each other task of its bank uses too.

    None of one task, and of very many: cells would be too small to see, and their number is a
    square.
    """
    subnets = list(store.subnets.values())
    if not 1 < len(subnets) <= MAX_OVERLAPS:
        return None
    common = torch.zeros(len(subnets), len(subnets))
    # In chunks: all masks at once as floats would take many times the model's memory.
    chunks = [t.split(CHUNK) for t in (store.layout.block_sizes, *(s.mask for s in subnets))]
    for sizes, *parts in zip(*chunks, strict=True):
        masks = torch.stack(parts).float()
        common += (masks * sizes) @ masks.t()
    cells = [
        [
            float(common[i, j] / common[i, i]) if a.bank == b.bank and common[i, i] else None
            for j, b in enumerate(subnets)
        ]
        for i, a in enumerate(subnets)
    ]
    if all(cell is None for row in cells for cell in row):
        return None
    sides = ("of task", "also used by task")
    return Figure(
        "mask-overlap",
        "Mask overlap",
        heat_map(
            "mask overlap between tasks",
            cells,
            sides,
            lambda v: f"{v * 100:.0f} %",
            names=store.tasks,
        ),
        "The share of a task's weights that another task of the same bank uses as well. "
        "Tasks of different banks share no values.",
    )


def codebooks(store: SubnetStore) -> Figure | None:
    """Histograms of the first task's weights in a few layers, with their centroids.

    Of the first task that has weights of its own; None where none has.
    """
    first = next((s for s in store.subnets.values() if s.num_new and s.has_mask), None)
    if first is None:
        return None
    names = [s.name for s in store.architecture.shared]
    # One codebook per task is kept as one part for all layers.
    titles = names if len(first.own) == len(names) else ["all layers"]
    own = [(n, c) for n, c in zip(titles, first.own, strict=True) if len(c)]
    drawing = Drawing(WIDTH, 4, "weights and their codebook")
    for name, coded in _spread(own, 3):
        _histogram(drawing, drawing.height - 4, name, coded)
        drawing.height += 124
    return Figure(
        "codebooks",
        "Weights and their codebook",
        drawing,
        "The first task's weights: areas show how many share a centroid; ticks are the centroids.",
    )


def _histogram(drawing: Drawing, top: float, name: str, coded: CodebookTensor) -> None:
    edges, heights, centroids = _bars(coded)
    reach = max(abs(edges[0]), abs(edges[-1])) or 1.0
    frame = Frame(0, top + 28, WIDTH, top + 92, (-reach, reach), (0, max(heights) * 1.02))
    kind = "values as they are" if coded.codes is None else f"{len(centroids)} centroids"
    drawing.text(0, top + 15, name, NORMAL, "ink", font_weight=600)
    drawing.text(WIDTH, top + 15, f"{len(coded):,} weights, {kind}", text_anchor="end")
    for low, high, height in zip(edges, edges[1:], heights, strict=False):
        x, y, width = frame.x(low), frame.y(height), frame.x(high) - frame.x(low) - 0.8
        drawing.rect(x, y, max(0.4, width), frame.bottom - y, "codes", fill_opacity=0.55)
    drawing.line(((0, frame.bottom), (WIDTH, frame.bottom)), "faint")
    for value in centroids:
        tick = [(frame.x(value), frame.bottom + below) for below in (0, 6)]
        drawing.line(tick, "warm", 1.6, note=f"centroid {value:.4f}")
    for value in ticks(-0.95 * reach, 0.95 * reach, 4):  # a label at the very edge is cut off
        drawing.text(frame.x(value), top + 113, f"{value:g}", SMALL - 1, text_anchor="middle")


def _bars(coded: CodebookTensor) -> tuple[list[float], list[float], list[float]]:
    """Edges and heights of the bars, and the centroids; a bar ends midway to the next centroid."""
    values = coded.values.double()
    if coded.codes is None or len(values) < 2:
        reach = float(values.abs().max()) or 1.0
        counts = torch.histc(values, 41, -reach, reach)
        return torch.linspace(-reach, reach, 42).tolist(), counts.tolist(), []
    centroids, order = values.sort()
    counts = torch.bincount(coded.codes.long(), minlength=len(values))[order]
    between = (centroids[1:] + centroids[:-1]) / 2
    ends = 2 * centroids[[0, -1]] - between[[0, -1]]
    edges = torch.cat([ends[:1], between, ends[1:]])
    widths = (edges[1:] - edges[:-1]).clamp(min=1e-9)
    return edges.tolist(), (counts / widths).tolist(), centroids.tolist()
