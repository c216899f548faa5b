"""Every other method, each after its paper: dense ones on one base, masked ones beside them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinysubnets.baselines.cwr import CWRStar
    from tinysubnets.baselines.ewc import EWC
    from tinysubnets.baselines.gem import AGEM, GEM
    from tinysubnets.baselines.joint import Cumulative, Independent, Naive
    from tinysubnets.baselines.lwf import LwF
    from tinysubnets.baselines.masked import WSN, AdaQPackNet, PackNet
    from tinysubnets.baselines.replay import GDumb, Replay
    from tinysubnets.baselines.separate import SeparateNetworks
    from tinysubnets.baselines.si import SI
    from tinysubnets.method.base import Learner

    # Every method is a `Learner`: the type checker compares each class with it.
    _CHECKED: tuple[type[Learner], ...] = (
        Naive, Cumulative, Independent, Replay, GDumb, GEM, AGEM, EWC, SI, LwF, CWRStar,
        WSN, PackNet, AdaQPackNet, SeparateNetworks,
    )  # fmt: skip
