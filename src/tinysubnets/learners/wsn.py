"""WSN: a mask per task, learned by scores together with the weights, over 32-bit weights.

H. Kang et al.: Forget-free Continual Learning with Winning Subnetworks, ICML 2022. It is what
TinySubNets grew from: no quantization, no post-pruning, one bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from tinysubnets import config
from tinysubnets.architecture import Architecture
from tinysubnets.coding.seven_tasks import seven_tasks_size
from tinysubnets.learners.dense_settings import check_setting
from tinysubnets.learners.tsn import TinySubNets
from tinysubnets.store import SubnetStore
from tinysubnets.training_settings import TrainingSettings


@dataclass(frozen=True)
class WSNSettings:
    """What WSN does with each task: `density` is the share of weights its mask keeps."""

    density: float = 0.5
    init: Literal["seeded", "given"] = "seeded"
    scale: Literal["kaiming", "xavier"] = "kaiming"
    setting: Literal["task", "class", "domain"] = "task"
    seed: int = 0

    def __post_init__(self) -> None:
        check_setting("wsn", self.setting, ("task",))


class WSN(TinySubNets):
    """A learner of winning subnetworks; it forgets nothing."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        training: TrainingSettings | Mapping | None = None,
        pruning: Any = None,
        device: str | torch.device = "cpu",
        store: SubnetStore | None = None,
        **settings: Any,
    ) -> None:
        own = asdict(config.build(WSNSettings, settings))
        del own["setting"]
        super().__init__(
            architecture,
            training=training,
            device=device,
            store=store,
            bits=32,
            max_banks=1,
            memory=None,
            post_pruning=False,
            private_bits=32,
            **own,
        )

    def wsn_capacity(self) -> float:
        """The capacity of the WSN paper: (1 − S) + (1 − α)·T / 32, a share of 32·|Θ| bits.

        S is the share of weights that no task uses and α how much of the raw masks' bits the
        Huffman code over seven tasks saves.
        """
        subnets = list(self.store.subnets.values())
        if not subnets:
            return 0.0
        masks = [self.store.layout.expand(s.mask).numpy() for s in subnets]
        num = self.store.layout.num_weights
        return 1 - self.store.free_share() + 8 * seven_tasks_size(masks) / (32 * num)
