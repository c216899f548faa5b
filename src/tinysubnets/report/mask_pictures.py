"""Pictures of a saved model: who owns which weight, what tasks share, and their codebooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import CodebookTensor
from tinysubnets.report.axes import NORMAL, SMALL, WIDTH, Frame, ticks
from tinysubnets.report.charts import Scale, heat_map
from tinysubnets.report.drawing import Drawing, Line, Picture, Rect, Text
from tinysubnets.report.theme import task_colour

WINDOW = (64, 110)  # rows and columns of a layer that are shown, where there are few
LOW_WINDOW = 32  # rows, where there are many
SMALL_WINDOW = 42
CHUNK = 1 << 19
PANELS = 10


def owners(store: SubnetStore, bank: int) -> Tensor:
    """For every weight of a bank the number of its owner, counted from 1; 0 where it is free."""
    owner = torch.zeros(store.layout.num_blocks, dtype=torch.int64)
    for number, subnet in enumerate(store.subnets.values(), 1):
        if subnet.bank == bank:
            owner = torch.where((owner == 0) & subnet.mask, number, owner)
    return store.layout.expand(owner)


def as_matrix(weights: Tensor) -> Tensor:
    """A layer's weights as inputs × outputs, as the paper draws them."""
    return weights.reshape(weights.shape[0], -1).t()


def window(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """The middle of a matrix; edges of images hold little."""
    top = max(0, (matrix.shape[0] - rows) // 2)
    left = max(0, (matrix.shape[1] - columns) // 2)
    return matrix[top : top + rows, left : left + columns]


def _picture(numbers: Tensor, place: tuple[float, float], cell: float, num_tasks: int) -> Picture:
    # Colour 0 is clear; more tasks than colours share the last ones.
    shown = numbers.clamp(max=255).to(torch.uint8)
    palette = ("#ffffff", *(task_colour(i, num_tasks) for i in range(min(num_tasks, 255))))
    rows = tuple(bytes(row.tolist()) for row in shown)
    width, height = numbers.shape[1] * cell, numbers.shape[0] * cell
    return Picture(*place, width, height, rows, palette)


def task_legend(drawing: Drawing, y: float, num_tasks: int, words: str) -> None:
    """The colours of the tasks in order, with the first and the last number."""
    start = 8 + 6.2 * len(words)
    drawing.add(Text(0, y + 10, words, SMALL, "soft"))
    width = min(18.0, (WIDTH - start - 26) / num_tasks)
    for i in range(num_tasks):
        left = start + i * width
        colour = task_colour(i, num_tasks)
        drawing.add(Rect(left, y, width - 1, 12, colour, note=f"task {i + 1}"))
    end = start + num_tasks * width + 6
    drawing.add(Text(end, y + 10, f"1 to {num_tasks}", SMALL, "soft"))


def ownership(store: SubnetStore) -> Drawing:
    """Which task owns which weight: the middle of the first layers of every bank."""
    names = [s.name for s in store.architecture.shared]
    panels = []
    shown_names = _layers_to_show(names, 3 if len(store.banks) == 1 else 2)
    rows = WINDOW[0] if len(store.banks) * len(shown_names) <= 2 else LOW_WINDOW
    for bank in range(min(3, len(store.banks))):
        parts = store.architecture.split(owners(store, bank))
        for name in shown_names:
            where = f"bank {bank}, {name}" if len(store.banks) > 1 else name
            panels.append((where, window(as_matrix(parts[name]), rows, WINDOW[1]), parts[name]))
    cells = [WIDTH / max(60, p[1].shape[1]) for p in panels]
    heights = [p[1].shape[0] * c for p, c in zip(panels, cells, strict=True)]
    total = sum(heights) + 44 * len(panels) + 26
    drawing = Drawing(WIDTH, total, "which task owns which weight")
    task_legend(drawing, 2, len(store.tasks), "owner: task")
    top = 26.0
    for (where, shown, whole), cell, height in zip(panels, cells, heights, strict=True):
        rows, columns = as_matrix(whole).shape
        size = f"{shown.shape[0]} × {shown.shape[1]} of {rows} × {columns}, {_free(whole)} free"
        drawing.add(Text(0, top + 16, where, NORMAL, bold=True))
        drawing.add(Text(WIDTH, top + 16, size, SMALL, "soft", "end"))
        drawing.add(Rect(0, top + 24, shown.shape[1] * cell, height, "grid", 0.45))
        drawing.add(_picture(shown, (0, top + 24), cell, len(store.tasks)))
        top += height + 44
    return drawing


def _layers_to_show(names: Sequence[str], count: int) -> list[str]:
    """The first, a middle and the last layer."""
    if len(names) <= count:
        return list(names)
    picks = [round(i * (len(names) - 1) / max(1, count - 1)) for i in range(count)]
    return [names[i] for i in dict.fromkeys(picks)]


def _free(owner: Tensor) -> str:
    return f"{float((owner == 0).double().mean()):.0%}"


def task_masks(store: SubnetStore) -> Drawing:
    """What each task uses in one layer, every weight in the colour of its owner."""
    sizes = {s.name: min(as_matrix(torch.empty(s.shape)).shape) for s in store.architecture.shared}
    name = max(sizes, key=lambda n: min(sizes[n], SMALL_WINDOW))
    count = len(store.tasks)
    chosen = sorted({round(i * (count - 1) / max(1, PANELS - 1)) for i in range(PANELS)})
    across = 5 if len(chosen) > 6 else 3
    room = (WIDTH - 12 * (across - 1)) / across
    drawing = Drawing(WIDTH, 26 + -(-len(chosen) // across) * (room + 42), "what each task uses")
    task_legend(drawing, 2, count, f"{name}, owner: task")
    owned = [store.architecture.split(owners(store, b))[name] for b in range(len(store.banks))]
    for place, index in enumerate(chosen):
        subnet = store.subnet(store.tasks[index])
        kept = store.architecture.split(store.layout.expand(subnet.mask))[name]
        used = torch.where(kept, owned[subnet.bank], 0)
        shown = window(as_matrix(used), SMALL_WINDOW, SMALL_WINDOW)
        x, y = (place % across) * (room + 12), 26 + (place // across) * (room + 42)
        reused = float(((used != index + 1) & kept).sum()) / max(1, int(kept.sum()))
        cell = room / max(shown.shape)
        width, height = shown.shape[1] * cell, shown.shape[0] * cell
        drawing.add(Rect(x, y, width, height, "grid", 0.45))
        drawing.add(_picture(shown, (x, y), cell, count))
        drawing.add(Text(x, y + height + 15, f"task {index + 1}", SMALL, bold=True))
        drawing.add(Text(x, y + height + 29, f"{reused:.0%} reused", SMALL, "soft"))
    return drawing


def overlap(store: SubnetStore) -> Drawing:
    """The share of each task's weights that each other task of its bank uses too."""
    subnets = list(store.subnets.values())
    sizes, common = store.layout.block_sizes.float(), torch.zeros(len(subnets), len(subnets))
    # In parts: all masks at once as floats would take many times the model's memory.
    for part in torch.arange(store.layout.num_blocks).split(CHUNK):
        masks = torch.stack([s.mask[part[0] : part[-1] + 1] for s in subnets]).float()
        common += (masks * sizes[part[0] : part[-1] + 1]) @ masks.t()
    cells = [
        [
            float(common[i, j] / common[i, i]) if a.bank == b.bank else None
            for j, b in enumerate(subnets)
        ]
        for i, a in enumerate(subnets)
    ]
    scale = Scale(0.0, 1.0, lambda v: f"{v * 100:.0f} %")
    return heat_map("mask overlap between tasks", cells, scale, ("of task", "also used by task"))


def codebooks(store: SubnetStore) -> Drawing:
    """Histograms of the first task's weights in a few layers, with the centres they are made of."""
    first = next(iter(store.subnets.values()))
    names = [s.name for s in store.architecture.shared]
    # One codebook per task is kept as one part for all layers.
    titles = names if len(first.own) == len(names) else ["all layers"]
    own = dict(zip(titles, first.own, strict=True))
    chosen = _layers_to_show([n for n, c in own.items() if len(c)], 3)
    panel = 124.0
    drawing = Drawing(WIDTH, panel * len(chosen) + 4, "weights and their codebook")
    for i, name in enumerate(chosen):
        _histogram(drawing, panel * i, name, own[name])
    return drawing


def _histogram(drawing: Drawing, top: float, name: str, coded: CodebookTensor) -> None:
    edges, heights, marks = _bars(coded)
    reach = max(abs(edges[0]), abs(edges[-1])) or 1.0
    frame = Frame(0, top + 28, WIDTH, top + 92, (-reach, reach), (0, max(heights) * 1.02))
    kind = f"{len(marks)} centres" if coded.codes is not None else "values as they are"
    drawing.add(Text(0, top + 15, name, NORMAL, bold=True))
    drawing.add(Text(WIDTH, top + 15, f"{len(coded):,} weights, {kind}", SMALL, "soft", "end"))
    for low, high, height in zip(edges, edges[1:], heights, strict=False):
        x, y = frame.x(low), frame.y(height)
        width = max(0.4, frame.x(high) - x - 0.8)
        drawing.add(Rect(x, y, width, frame.bottom - y, "codes", 0.55))
    drawing.add(Line(((0, frame.bottom), (WIDTH, frame.bottom)), "faint"))
    for mark in marks:
        x = frame.x(mark)
        tick = ((x, frame.bottom), (x, frame.bottom + 6))
        drawing.add(Line(tick, "warm", 1.6, note=f"centre {mark:.4f}"))
    for value in ticks(-0.95 * reach, 0.95 * reach, 4):  # a label at the very edge is cut off
        drawing.add(Text(frame.x(value), top + 113, f"{value:g}", SMALL - 1, "soft", "middle"))


def _bars(coded: CodebookTensor) -> tuple[list[float], list[float], list[float]]:
    """Edges and heights of the bars, and the centres; a centre's bar ends midway to the next."""
    values = coded.values.double()
    if coded.codes is None or len(values) < 2:
        reach = float(values.abs().max()) or 1.0
        counts = torch.histc(values, 41, -reach, reach)
        return torch.linspace(-reach, reach, 42).tolist(), counts.tolist(), []
    counts = torch.bincount(coded.codes.long(), minlength=len(values)).double()
    order = values.argsort()
    centres, counts = values[order], counts[order]
    between = (centres[1:] + centres[:-1]) / 2
    edges = torch.cat([2 * centres[:1] - between[:1], between, 2 * centres[-1:] - between[-1:]])
    widths = (edges[1:] - edges[:-1]).clamp(min=1e-9)
    return edges.tolist(), (counts / widths).tolist(), centres.tolist()
