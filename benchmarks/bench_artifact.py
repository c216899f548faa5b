"""Saving and loading 11M weights x 40 tasks: seconds, bytes, peak memory against the dense model.

    python benchmarks/bench_artifact.py                   # about five minutes
    python benchmarks/bench_artifact.py --model MODEL     # a saved model against the paper's sizes

The masks are synthetic: "unrelated" draws each anew, "related" keeps nine tenths of the one before.
Seconds are those of the processor, one core, the best of three. Every load is measured in a process
of its own; its memory is what it holds at its peak beyond what imports and a first network took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tinysubnets import format as artifact
from tinysubnets import networks
from tinysubnets.coding.masks import entropy_bits
from tinysubnets.model.store import SubnetStore
from tinysubnets.model.subnet import CodebookTensor, PackedMask, Subnet
from tinysubnets.nn.architecture import Architecture
from tinysubnets.tasks.normalization import Normalization

NETWORK = {"width": 64, "stem": "7x7"}
LIMITS = {"save_seconds": 2.0, "load_one_seconds": 1.0, "memory_ratio": 3.0}


def build() -> Architecture:
    """ResNet-18 of full width, as for ImageNet100."""
    record = {"network": "resnet18", "settings": NETWORK, "head": "fc"}
    return Architecture(networks.build("resnet18", **NETWORK), rebuild=record)


def next_mask(
    last: np.ndarray | None, count: int, density: float, keep: float, rng: np.random.Generator
) -> np.ndarray:
    """A random mask that keeps a share of the one before and has the same density."""
    fresh = rng.random(count, np.float32) < density
    if last is None or keep == 0:
        return fresh
    stays = rng.random(count, np.float32) < keep
    return (last & stays) | (~last & fresh & (rng.random(count, np.float32) < (1 - keep)))


def make(tasks: int, density: float, keep: float, seconds: list[float]) -> SubnetStore:
    """A store of synthetic tasks."""
    architecture = build()
    store = SubnetStore(architecture, seed=0)
    rng = np.random.default_rng(0)
    shapes = architecture.task_param_shapes(10)
    mask = None
    for number in range(tasks):
        mask = next_mask(mask, store.layout.num_blocks, density, keep, rng)
        new = mask & ~store.banks[0].owned.numpy() if store.banks else mask
        own = []
        for i, j in store.layout.segments:
            count = int(np.count_nonzero(new[i:j]))
            codes = np.clip(rng.normal(8, 3, count), 0, 15).astype(np.uint8)
            centroids = torch.from_numpy(np.sort(rng.normal(size=16))).half().float()
            own.append(CodebookTensor(centroids, torch.from_numpy(codes), 4))
        task_params = {
            n: CodebookTensor(torch.from_numpy(rng.normal(size=int(np.prod(s)))).half().float())
            for n, s in shapes.items()
        }
        begin = time.process_time()
        store.add_(
            Subnet(
                f"task {number}",
                tuple(range(10)),
                Normalization((0.5,) * 3, (0.25,) * 3, 2),
                0,
                PackedMask.of(torch.from_numpy(mask)),
                4,
                tuple(own),
                task_params,
                shapes,
            )
        )
        seconds.append(time.process_time() - begin)
    return store


def memory_bytes(line: str) -> int:
    """The memory of this process: "VmRSS" now, "VmHWM" at its peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


def measure_load(folder: str, task: str | None) -> None:
    """Load in this process and print what it took."""
    torch.set_num_threads(1)
    # What a first network costs in lazily loaded code is not the model's either.
    architecture = Architecture(networks.build("small-mlp"))
    del architecture
    before = memory_bytes("VmRSS")
    begin = time.process_time()
    store = SubnetStore.load(folder, task=task)
    seconds = time.process_time() - begin
    name = store.tasks[-1]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "bytes": memory_bytes("VmHWM") - before,
                "digest": store.digest(name),
            }
        )
    )


def in_process(folder: str, task: str | None) -> dict:
    """The best of three loads, each in a process of its own."""
    command = [sys.executable, __file__, "--load", folder, *(["--task", task] if task else [])]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(3)
    ]
    return min(runs, key=lambda r: r["seconds"])


def bench(kind: str, tasks: int, density: float, keep: float) -> None:
    """One row of the table for each thing measured."""
    claims: list[float] = []
    store = make(tasks, density, keep, claims)
    dense = 4 * store.layout.num_weights
    with tempfile.TemporaryDirectory() as folder:
        before, saves = memory_bytes("VmRSS"), []
        for i in range(3):
            begin = time.process_time()
            path = store.save(f"{folder}/{i}")
            saves.append(time.process_time() - begin)
        extra = memory_bytes("VmHWM") - before
        size = path.stat().st_size
        digest = store.digest(store.tasks[-1])
        one = in_process(f"{folder}/0", store.tasks[-1])
        whole = in_process(f"{folder}/0", None)
    assert one["digest"] == whole["digest"] == digest
    print(
        f"\n{kind}: {tasks} tasks, density {density}, {store.layout.num_weights:,} weights, "
        f"{size:,} bytes = {size / dense:.3f} of dense"
    )
    rows = [
        ("claim a task, s (last)", claims[-1], None),
        ("save, s", min(saves), LIMITS["save_seconds"]),
        ("save, memory / dense", extra / dense, LIMITS["memory_ratio"]),
        ("load one task, s", one["seconds"], LIMITS["load_one_seconds"]),
        ("load one task, memory / dense", one["bytes"] / dense, LIMITS["memory_ratio"]),
        ("load all tasks, s", whole["seconds"], None),
        ("load all tasks, memory / dense", whole["bytes"] / dense, None),
    ]
    for name, value, limit in rows:
        ratio = "" if limit is None else f"{value / limit:8.2f} of the limit {limit:g}"
        print(f"  {name:32s} {value:8.3f} {ratio}")


def compare(model: str) -> None:
    """A saved model: the file against the paper-style size, and masks against their other codes."""
    found = artifact.inspect(model)
    ledger, masks, tasks = found["ledger"], found["masks"], found["tasks"]
    weights, total = found["num_weights"], ledger["total"]
    entropy = _xor_entropy_bytes(model)
    # The paper keeps masks raw in its formula; its tables go with the Huffman code.
    values = (total["codes"] + total["codebooks"]) / 8
    task_params = (total["heads"] + total["task_params"]) / 8
    rows = [
        ("file", ledger["file_bytes"]),
        ("of it codes and codebooks", values),
        ("of it masks", masks["stored_bytes"]),
        ("of it heads and other task-specific parameters", task_params),
        ("of it memory", total["memory"] / 8),
        ("of it header, config and index", total["metadata"] / 8),
        ("masks, entropy of XOR with the best reference", entropy),
        ("masks, seven-task Huffman", masks["seven_task_huffman_bytes"]),
        ("paper-style: values + seven-task Huffman", values + masks["seven_task_huffman_bytes"]),
        ("paper-style: values + raw masks", values + masks["raw_bytes"]),
    ]
    print(f"{model}: {len(tasks)} tasks, {weights:,} shared weights")
    for name, size in rows:
        print(f"  {name:46s} {size:12,.0f} bytes {100 * size / (4 * weights):8.2f} % of dense")
    stored = masks["stored_bytes"]
    print(f"  masks stored / XOR entropy            {stored / entropy:8.3f}")
    print(
        f"  masks stored / seven-task Huffman     {stored / masks['seven_task_huffman_bytes']:8.3f}"
    )


def _xor_entropy_bytes(model: str) -> float:
    """The entropy of every mask XOR the best of nothing, the owned set and earlier masks."""
    with artifact.ModelFile(artifact.model_path(model)) as file:
        contents = artifact.read_contents(file)
    total = 0.0
    seen: dict[int, list[np.ndarray]] = {}
    for subnet in contents.subnets.values():
        mask, earlier = subnet.mask.numpy(), seen.setdefault(subnet.bank, [])
        owned = [np.logical_or.reduce(earlier)] if earlier else []
        differences = [mask, *(mask != r for r in (*owned, *earlier))]
        total += min(entropy_bits(int(np.count_nonzero(d)), mask.size) for d in differences)
        earlier.append(mask)
    return total / 8


def main() -> None:
    """Run the benchmark, or one load for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load")
    parser.add_argument("--task")
    parser.add_argument("--model")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--density", type=float, default=0.1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.load:
        measure_load(args.load, args.task)
        return
    if args.model:
        compare(args.model)
        return
    bench("related", args.tasks, args.density, 0.9)
    bench("unrelated", args.tasks, args.density, 0.0)


if __name__ == "__main__":
    main()
