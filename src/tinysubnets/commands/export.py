"""The command `tsn export`: one task or all of them as ONNX or .pt2."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands.model import LINE_END, add_net, command, loaded
from tinysubnets.commands.predict import NOT_HELD_OUT, labeled, strange_labels
from tinysubnets.errors import SettingError
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from tinysubnets.datasets.user_files import Part
    from tinysubnets.format.onnx import Exported
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.model.subnet import Subnet

CALIBRATION = 200  # samples that the ranges of int8 activations are measured on


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    export = command(subparsers, "export", "one task or all as ONNX or .pt2", _export)
    which = export.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", metavar="NAME", help="the task's name")
    which.add_argument(
        "--all-tasks",
        action="store_true",
        help="every task, and what finds out which of them an input belongs to, in one file",
    )
    export.add_argument("out", metavar="OUT.onnx", help="the file to write, .onnx or .pt2")
    export.add_argument("--plain", action="store_true", help="float32 weights instead of codes")
    export.add_argument(
        "--int8",
        action="store_true",
        help="static quantization; needs --data, and writes OUT.md: accuracy and time beside float",
    )
    export.add_argument(
        "--data", metavar="FOLDER", help="images per class, or .npz, to calibrate and measure with"
    )
    add_net(export)


def _export(options: argparse.Namespace) -> int:
    from tinysubnets.datasets.user_files import recorded_preprocessing
    from tinysubnets.format import onnx as export

    suffix = Path(options.out).suffix
    if suffix not in (".onnx", ".pt2"):
        raise SettingError(f"{options.out}: write to a file that ends in .onnx or .pt2.")
    if options.int8 and options.data is None:
        raise SettingError("--int8 needs --data: images per class or .npz to calibrate with.")
    store = loaded(options, options.task)
    if options.all_tasks:
        return _export_all(store, options)
    if suffix == ".pt2":
        done = export.to_torch(store, options.task, options.out)
        print(f"{done.path}: {done.file_bytes:,} bytes, for torch.export.load")
        return 0
    data = None if options.data is None else labeled(store, options)
    done = export.to_onnx(
        store,
        options.task,
        options.out,
        packed=not options.plain,
        int8=data[1].inputs[:CALIBRATION] if options.int8 and data is not None else None,
    )
    print(f"{done.path}: {done.file_bytes:,} bytes (float32 weights: {done.plain_bytes:,})")
    _tell_inputs(store.subnet(options.task))
    if (done_to := recorded_preprocessing(store.subnet(options.task))) is not None:
        print(f"from pictures: {done_to.for_any_size()}; in its metadata")
    if data is None:
        return 0
    part = data[0]
    where = f"the {len(part)} samples of {options.data}" + (f", part {part.name}" * bool(part.name))
    if strange := strange_labels(part.labels, store.subnet(options.task).classes):
        print(f"accuracy on {where} not measured: {for_terminal(strange)}")
        return 0
    exported = export.onnx_accuracy(done.path, part.inputs, part.labels)
    live = store.evaluate(options.task, part.inputs, part.labels).accuracy
    print(f"accuracy on {where}: {100 * exported:.2f} % exported, {100 * live:.2f} % in torch")
    if part is data[1]:  # no test part
        print(f"note: {NOT_HELD_OUT}")
    if options.int8:
        print(_int8_card(store, options.task, done, data))
    return 0


def _export_all(store: SubnetStore, options: argparse.Namespace) -> int:
    """Write all tasks into one file, with what finds the task of an input."""
    from tinysubnets.format import onnx as export
    from tinysubnets.format.routed import OUTPUTS
    from tinysubnets.model.routing import Router

    if options.int8 or options.data is not None:
        raise SettingError("--int8 and --data are for one task; give --task instead.")
    if Path(options.out).suffix == ".pt2":
        done = export.to_torch(store, None, options.out)
        print(f"{done.path}: {done.file_bytes:,} bytes, for torch.export.load")
    else:
        done = export.to_onnx(store, None, options.out, packed=not options.plain)
        print(f"{done.path}: {done.file_bytes:,} bytes (float32 weights: {done.plain_bytes:,})")
    _tell_inputs(store.subnet(store.tasks[0]))
    passes = Router(store, list(store.subnets.values())).passes(all_answers=True)
    print(f"gives {', '.join(OUTPUTS)}; passes of networks per input: {passes}")
    return 0


def _tell_inputs(subnet: Subnet) -> None:
    """Print the type and shape of inputs, where they are on record."""
    if (sample := subnet.sample) is not None:
        kind = str(sample.dtype).removeprefix("torch.")
        print(f"takes {kind} inputs of shape {('batch', *sample.shape)}, raw")


def _int8_card(store: SubnetStore, task: str, done: Exported, data: tuple[Part, Part]) -> str:
    """Measure int8 beside float32, and write the table beside the exported file."""
    import tempfile

    from tinysubnets.files import atomic_write
    from tinysubnets.format import onnx as export
    from tinysubnets.format.card import onnx_snippet

    part, calibration = data
    inputs, labels = part.inputs, part.labels
    about = f"the {len(inputs)} samples of --data, by which ranges were calibrated as well"
    if part is not calibration:
        about = f"the {len(inputs)} samples of {part.name} that nothing was calibrated with"
    elif len(inputs) >= 2 * CALIBRATION:
        inputs, labels = inputs[CALIBRATION:], labels[CALIBRATION:]
        about = f"{len(inputs)} samples of --data that nothing was calibrated with"
    if part is calibration:
        about += f"; {NOT_HELD_OUT}"
    with tempfile.TemporaryDirectory() as folder:
        plain = export.to_onnx(store, task, Path(folder) / "float.onnx")
        card = export.export_card(task, {"float32": plain, "int8": done}, inputs, labels, about)
    place = done.path.with_suffix(".md")
    snippet = onnx_snippet(store.subnet(task), done.path.name)
    how = f"\nA picture's label, in Python:\n\n```python\n{snippet}```\n" if snippet else ""
    atomic_write(place, f"{card}{how}".encode())
    return f"{card.partition(LINE_END * 2)[2].rstrip()}{LINE_END}written to {place}"
