"""The model card: what a model folder says of itself to people and to the Hub."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tinysubnets.errors import DataError
from tinysubnets.model.size import Entry, Ledger
from tinysubnets.tasks.preprocessing import Preprocessing
from tinysubnets.text import for_markdown

if TYPE_CHECKING:
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.model.subnet import Subnet

MAX_CHANNELS = 4  # whose means and deviations are shown


def model_card(store: SubnetStore, ledger: Ledger) -> str:
    """The README of a model folder: tasks, accuracies and the ledger."""
    lines = [
        "---",
        "library_name: tinysubnets",
        "tags:",
        "- continual-learning",
        "- tinysubnets",
        "---",
        "",
        f"# {len(store.tasks)} tasks in one network",
        "",
        f"{ledger.file_bytes:,} bytes in `model.safetensors`; the network has "
        f"{ledger.num_weights:,} shared weights, {4 * ledger.num_weights:,} bytes as float32. "
        f"So the file is {100 * (ledger.file or 0):.2f} % of one dense network.",
        *_about_base(store),
        "",
        "| task | classes | bank | bits | density | validation accuracy | bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, subnet in store.subnets.items():
        accuracy = subnet.valid_accuracy
        shown = f"{100 * accuracy:.2f} %" if accuracy == accuracy else "not recorded"
        lines.append(
            f"| {_cell(name)} | {_cell(', '.join(map(str, subnet.classes)))} | {subnet.bank} | "
            f"{subnet.bits} | {store.density(name):.4f} | {shown} | "
            f"{ledger.tasks[name].total / 8:,.0f} |"
        )
    lines += _inputs(store)
    lines += ["", "| part | bytes |", "|---|---|"]
    total = ledger.total
    lines += [f"| {f.name} | {getattr(total, f.name) / 8:,.0f} |" for f in fields(Entry)]
    lines += [f"| file | {ledger.file_bytes:,} |", "", *_usage(store), ""]
    snippets = [s for s in map(onnx_snippet, store.subnets.values()) if s]
    if snippets:
        lines += [
            "Exported (`tsn export MODEL --task TASK task.onnx`) it needs onnxruntime and Pillow "
            "alone:",
            "",
            "```python",
            *snippets[0].splitlines(),
            "```",
            "",
        ]
    return "\n".join(lines)


def onnx_snippet(subnet: Subnet, file: str = "task.onnx", picture: str = "photo.jpg") -> str:
    """Python that labels a picture by an exported task, with nothing of this package.

    It reads from the file's metadata what is done to pictures. Empty where the task has not
    recorded that.

    - `file`: the name of the ONNX file.
    - `picture`: that of the picture.
    """
    if subnet.preprocessing is None or subnet.sample is None:
        return ""
    try:
        done = Preprocessing.from_dict(subnet.preprocessing)
    except DataError:
        return ""  # of another version
    lines = [
        "import json",
        "import numpy as np",
        "import onnxruntime",
        "from PIL import Image, ImageOps",
        "",
        f"session = onnxruntime.InferenceSession({file!r})",
        "about = session.get_modelmeta().custom_metadata_map",
        'how = json.loads(about["preprocessing"])',
        f"image, w, h = ImageOps.exif_transpose(Image.open({picture!r}))"
        '.convert(how["mode"]), how["width"], how["height"]',
        'scale = max(how["resize"] / min(image.size), w / image.width, h / image.height)',
        "size = max(w, round(image.width * scale)), max(h, round(image.height * scale))",
        "left, top = (size[0] - w) // 2, (size[1] - h) // 2",
        "image = image.resize(size, Image.BILINEAR).crop((left, top, left + w, top + h))",
        "inputs = np.asarray(image).reshape(1, h, w, -1).transpose(0, 3, 1, 2)",
        'logits = session.run(None, {"inputs": inputs})[0]',
        'print(json.loads(about["classes"])[logits.argmax()])',
    ]
    more = []  # what few tasks need
    if done.channels is not None:
        more.append(f"inputs = inputs.repeat({done.channels}, axis=1)")
    if done.frame is not None:
        top, left = ((done.frame - side) // 2 for side in (done.height, done.width))
        bottom, right = done.frame - done.height - top, done.frame - done.width - left
        edges = f"((0, 0), (0, 0), ({top}, {bottom}), ({left}, {right}))"
        more.append(f"inputs = np.pad(inputs, {edges})")
    if subnet.sample.shape != done.shape:
        more.append(f"inputs = inputs.reshape(1, {', '.join(map(str, subnet.sample.shape))})")
    return "\n".join([*lines[:-2], *more, *lines[-2:]]) + "\n"


def _inputs(store: SubnetStore) -> list[str]:
    """What raw inputs look like and how pictures become them, once for all tasks alike."""
    alike: dict[str, list[str]] = {}
    for name, subnet in store.subnets.items():
        if subnet.sample is None:
            continue
        shape = "x".join(map(str, subnet.sample.shape))
        text = f"{str(subnet.sample.dtype).removeprefix('torch.')} of {shape}"
        if subnet.preprocessing is not None:
            try:
                text += f", from pictures: {Preprocessing.from_dict(subnet.preprocessing)}"
            except DataError:
                text += f", from pictures: {_cell(str(dict(subnet.preprocessing)))}"
        scale = subnet.normalization
        if 0 < len(scale.mean) <= MAX_CHANNELS:
            means, stds = (", ".join(f"{v:.4g}" for v in part) for part in (scale.mean, scale.std))
            text += f"; normalized inside by mean {means} and deviation {stds}"
        alike.setdefault(text, []).append(_cell(name))
    if not alike:
        return []
    lines = ["", "| tasks | raw inputs |", "|---|---|"]
    for text, names in alike.items():
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"| {shown} | {text} |")
    return lines


def _about_base(store: SubnetStore) -> list[str]:
    """The base that tasks were learned over, where they need it."""
    base = store.base
    if base is None or not store.needs_base():
        return []
    held = "Its weights are in the file." if base.embedded else "Its weights are not in the file."
    name, source = _cell(base.name), _cell(base.source)
    return ["", f"Learned over the base {name} ({source}), SHA-256 {base.sha256}. {held}"]


def _usage(store: SubnetStore) -> list[str]:
    """How the model is used, for the first of its tasks; it runs in the model's own folder."""
    rebuild = store.architecture.rebuild
    is_rebuilt = rebuild is not None and ":" not in str(rebuild.get("network", ":"))
    lines = ["```python", "import torch", "", "from tinysubnets import SubnetStore", ""]
    lacks_base = store.needs_base() and store.base is not None and not store.base.embedded
    if is_rebuilt and lacks_base:
        lines += [
            "# `weights` is a file of the base's weights, or the network that has them.",
            'store = SubnetStore.load(".", base=weights)  # this folder',
        ]
    elif is_rebuilt:
        lines.append('store = SubnetStore.load(".")  # this folder')
    else:
        with_weights = ", with the weights of the base" if lacks_base else ""
        lines += [
            f"# `net` is your own network, as it was when the tasks were learned{with_weights}.",
            'store = SubnetStore.load(".", net)  # this folder',
        ]
    subnet = next(iter(store.subnets.values()), None)
    if subnet is None or subnet.sample is None:
        return [*lines, "print(store.tasks)", "```"]
    sample, name = subnet.sample, subnet.name
    shape = ", ".join(map(str, (2, *sample.shape)))
    if subnet.preprocessing is not None:
        lines.append("# Pictures of any size too: from PIL import Image; [Image.open(file)]")
    return [
        *lines,
        f"inputs = torch.zeros(({shape}), dtype={sample.dtype})  # raw: normalized for you",
        f"print(store.predict({name!r}, inputs))",
        "```",
    ]


def _cell(text: str) -> str:
    """Text that cannot break out of a table cell, not too long."""
    return for_markdown(text if len(text) <= 200 else text[:200] + "…")
