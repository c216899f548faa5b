"""Check that two versions of this project compute the same numbers, bit for bit.

    python scripts/same_numbers.py                        # HEAD against the working tree
    python scripts/same_numbers.py --base 6847276         # another commit
    python scripts/same_numbers.py --write tests/golden/short_runs.json   # one short run a method

Every method runs on small data, with one thread and two seeds, in both versions on this machine.
Compared are the accuracy matrix, the ledger without its metadata and a hash of every task's
tensors. Numbers of two machines, or of two builds of torch, need not be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
METHODS = (
    "tsn", "tsn-wr", "tsn-wr-wpp", "wsn", "packnet", "ada-qpacknet", "naive", "cumulative",
    "independent", "replay", "gdumb", "gem", "a-gem", "ewc", "si", "lwf", "cwr-star",
)  # fmt: skip
SCENARIOS = ("permuted-digits", "split-digits")
SEEDS = (0, 1)
SHORT = ("training.epochs=2", "data.train_limit=200", "data.num_tasks=3")  # for --write

# Settings with another way through the code: (name, scenario, method, settings).
VARIANTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("blocks", "permuted-digits", "tsn", ("tsn.block=4",)),
    ("one-codebook", "permuted-digits", "tsn", ("tsn.codebooks=task", "tsn.bits=3")),
    ("disjoint", "split-digits", "tsn", ("tsn.sharing=none", "tsn.max_banks=3")),
    ("samples", "split-digits", "tsn", ("tsn.memory=samples",)),
    ("bytes", "permuted-digits", "tsn-wr", ("pruning.objective=bytes",)),
    ("sgd", "permuted-digits", "tsn", ("training.optimizer=sgd", "training.momentum=0.9")),
    ("plateau", "split-digits", "tsn", ("training.schedule=plateau", "training.epochs=9")),
    ("previous-mask", "permuted-digits", "tsn", ("tsn.score_init=previous_mask",)),
    ("exponent", "split-digits", "tsn", ("tsn.density_exponent=0.5",)),
    ("layer-loss", "split-digits", "tsn", ("tsn.layer_loss_weight=0.1",)),
    ("score-rate", "permuted-digits", "tsn", ("training.score_lr=0.001",)),
    ("pretrained", "split-digits", "tsn", ("tsn.init=pretrained",)),
    *(
        (f"{m}-class-IL", "split-digits", m, (f"{m}.scenario_type=class-IL",))
        for m in ("naive", "cumulative", "replay", "gdumb", "cwr-star")
    ),
    *(
        (f"{m}-domain-IL", "permuted-digits", m, (f"{m}.scenario_type=domain-IL",))
        for m in ("naive", "gem", "a-gem", "ewc", "si", "lwf", "cwr-star")
    ),
)


def digests(folder: Path) -> dict[str, str]:
    """A hash of every learned task's tensors, or of every tensor of a dense model."""
    from safetensors.numpy import load_file

    from tinysubnets import SubnetStore, TinySubNetsError

    try:
        store = SubnetStore.load(folder)
    except TinySubNetsError:
        tensors = load_file(folder / "model.safetensors")
        return {n: hashlib.sha256(t.tobytes()).hexdigest() for n, t in sorted(tensors.items())}
    return {task: store.digest(task) for task in store.tasks}


WORDS = ("metadata", "total", "file", "file_bytes")  # lines that the words in the file change


def without_words(ledger: Any) -> Any:
    """The ledger but for those lines; a table of such a name, as that of all lines, stays."""
    if isinstance(ledger, dict):
        kept = {k: v for k, v in ledger.items() if k not in WORDS or isinstance(v, dict)}
        return {k: without_words(v) for k, v in kept.items()}
    return ledger


def run(scenario: str, method: str, seed: int, settings: tuple[str, ...], out: Path) -> Any:
    """What a run comes to; None where this version does not know the settings."""
    from tinysubnets.cli import main

    options = [part for text in settings for part in ("--set", text)]
    command = ["run", scenario, "--method", method, "--seed", str(seed), "--threads", "1"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as e:
        status = main([*command, "--no-report", "--device", "cpu", "--out", str(out), *options])
    if status:
        print(e.getvalue().strip(), file=sys.stderr)
        return None
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return {
        "accuracy_matrix": result["accuracy_matrix"],
        "ledger": without_words(result["ledger"]),
        "digests": digests(out / "model"),
    }


def machine() -> dict[str, str]:
    """What must be equal for numbers to be equal: the processor and the build of torch.

    A name alone says little: virtual machines give many processors the same one.
    """
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (n.partition(":") for n in lines)}
    names = {"model name": "", "cpu family": "family ", "model": "model ", "stepping": "stepping "}
    known = [f"{word}{told[name]}" for name, word in names.items() if name in told]
    return {
        "cpu": ", ".join(known) or platform.processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def all_runs(quick: bool) -> dict[str, Any]:
    """Every run's numbers by its name, in this process."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for method in METHODS:
            for scenario in SCENARIOS[:1] if quick else SCENARIOS:
                for seed in SEEDS[:1] if quick else SEEDS:
                    settings = SHORT if quick else SHORT[:1]
                    name = f"{scenario}/{method}/{seed}"
                    found[name] = run(scenario, method, seed, settings, place / f"run{len(found)}")
                    print(name, "ran" if found[name] else "FAILED", file=sys.stderr)
        for name, scenario, method, settings in () if quick else VARIANTS:
            out = place / f"run{len(found)}"
            found[name] = run(scenario, method, 0, (SHORT[0], *settings), out)
            print(name, "ran" if found[name] else "FAILED", file=sys.stderr)
    return found


def of_tree(source: Path, out: Path) -> dict[str, Any]:
    """The numbers of the package below `source`, from a process of its own."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--collect", str(out)], env=env, check=True)
    return json.loads(out.read_text(encoding="utf-8"))


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two pieces of plain data differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [d for k in keys for d in differences(one.get(k), other.get(k), f"{path}/{k}")]
    return [] if one == other else [f"{path}: {str(one)[:60]} != {str(other)[:60]}"]


def main() -> int:
    """Compare, or collect the numbers of the package that is imported here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    parser.add_argument("--write", metavar="FILE", help="write one short run per method")
    parser.add_argument("--collect", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--cache", metavar="DIR", help="keep the base's numbers here")
    options = parser.parse_args()
    if options.write:
        data = {"machine": machine(), "settings": list(SHORT), "runs": all_runs(quick=True)}
        Path(options.write).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return 0
    if options.collect:
        Path(options.collect).write_text(json.dumps(all_runs(quick=False)), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        git = ["git", "-C", str(ROOT)]
        found = subprocess.run([*git, "rev-parse", options.base], check=True, capture_output=True)
        commit = found.stdout.decode().strip()
        kept = (Path(options.cache) if options.cache else place) / f"numbers-{commit}.json"
        if not kept.exists():
            tree = place / "base"
            subprocess.run([*git, "worktree", "add", "--detach", str(tree), commit], check=True)
            try:
                of_tree(tree / "src", kept)
            finally:
                subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
        before = json.loads(kept.read_text(encoding="utf-8"))
        now = of_tree(ROOT / "src", place / "now.json")
    found_differences = differences(before, now)
    print("\n".join(found_differences) or f"{len(now)} runs: all numbers are equal, bit for bit.")
    return 1 if found_differences or None in now.values() else 0


if __name__ == "__main__":
    sys.exit(main())
