"""Arguments that the commands on saved models have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_MODEL = "a model folder, the folder of a finished run, or a model.safetensors"


def command(subparsers: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    """A command on a model."""
    parser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.set_defaults(run=run)
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def add_task(parser: argparse.ArgumentParser) -> None:
    """Let the command take one task."""
    parser.add_argument("--task", required=True, metavar="NAME", help="the task's name")


def add_net(parser: argparse.ArgumentParser) -> None:
    """Let the command take the user's own network."""
    parser.add_argument(
        "--net", metavar="MODULE:FUNCTION", help="builds your own network, where it is one"
    )


def own_network(options: argparse.Namespace) -> nn.Module | None:
    """The user's own network, named on the command line; never one that a file names."""
    if options.net is None:
        return None
    from tinysubnets import networks

    return networks.build(options.net)
