"""TinySubNets: one network, many tasks, not one bit forgotten."""

from tinysubnets.version import __version__

__all__ = ["__version__"]
