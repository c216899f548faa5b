"""Post-pruning against the training it follows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from benchmarks.steps import trainer_of
from tinysubnets.method.compress import Compressor

EPOCHS = 50


def share_of_training(network: str, batch: int, device: torch.device) -> dict[str, Any]:
    """Fifty iterations of Algorithm 2 over fifty epochs of training.

    The objective counts bytes alone, so that every step is kept and every one must be measured.
    """
    num_steps = 211 if network == "mlp" else 35
    trainer = trainer_of(network, batch, num_steps, device)
    trainer.epoch()
    seconds = min(trainer.epoch().seconds for _ in range(2))
    work = Compressor(trainer)
    bits, own = work.choose_bits(work.mask)
    trainer.learner.pruning = replace(trainer.learner.pruning, alpha=0.0, beta=1.0)
    work.prune(own, bits)  # once to warm up
    begin = time.perf_counter()
    pruned = work.prune(own, bits)
    pruning_s = time.perf_counter() - begin
    return {
        "what": f"post-pruning 50 iterations over {EPOCHS} epochs, {network}",
        "ratio": pruning_s / (EPOCHS * seconds),
        "target": "<= 0.03",
        "pruning_s": pruning_s,
        "measured": pruned.num_kept + 1,
        "epoch_s": seconds,
    }
