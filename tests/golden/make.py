"""Make the golden files of format 2, once: they stay readable for ever and are never made again.

Those of format 1 were made in the same way by the version that wrote it.

    python tests/golden/make.py

Every kind of section is in them: packed and Huffman-coded codes, values in float16 and float32 and
on grids, as they are and as differences, one codebook per layer and per task, one-bit codes of
kernels, masks by kernel and by matrix, against nothing, owned sets, scores and earlier masks, block
masks, statistics, histograms, samples, normalizations of one and of many channels, constant
buffers, a nameless owner, an empty bank, an isolated task, tensors without bytes, preprocessing,
routing, differences, also of low rank and in chains, a base.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import models  # noqa: E402
from tinysubnets.model.store import SubnetStore  # noqa: E402

MODELS = {
    "named": lambda: models.store("named", 6),
    "own": lambda: models.store("own", 5),
    "blocks": lambda: models.store("named", 5, 4),
    "references": models.reference_store,
    "whole": models.whole_store,
    "kernels": models.kernel_store,
    "matrices": models.matrix_store,
    "low-rank": models.low_rank_store,
    "chain": models.chain_store,
}


def expected(store: SubnetStore) -> dict[str, object]:
    """What a reader has to find in a file."""
    return {
        "tasks": {name: store.digest(name) for name in store.tasks},
        "references": [s.coded_mask.reference for s in store.subnets.values() if s.coded_mask],
        "classes": [list(s.classes) for s in store.subnets.values()],
        "banks": [s.bank for s in store.subnets.values()],
        "numbers": [s.number for s in store.entries()],
        "num_banks": len(store.banks),
        "isolated": [s.name for s in store.subnets.values() if s.isolated],
        "preprocessing": [s.preprocessing for s in store.subnets.values()],
        "routing": [{n: v.tolist() for n, v in s.routing.items()} for s in store.subnets.values()],
        "file_bytes": store.ledger().file_bytes,
    }


def main() -> None:
    """Write the files that are not there yet, and what is expected of them."""
    digests = json.loads((HERE / "format2.json").read_text())
    for name, make in MODELS.items():
        target = HERE / f"format2-{name}.safetensors"
        if target.exists():
            continue
        store = make()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copyfile(store.save(folder), target)
        digests[name] = expected(store)
    (HERE / "format2.json").write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    main()
