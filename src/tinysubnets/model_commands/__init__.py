"""The commands `tsn inspect`, `verify`, `predict`, `learn` and `export`."""

from tinysubnets.model_commands.commands import add_parsers

__all__ = ["add_parsers"]
