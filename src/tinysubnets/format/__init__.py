"""The model file: a learned store as one small file that loads anywhere; see docs/FORMAT.md."""

from tinysubnets.format.backup import undo
from tinysubnets.format.container import FILE_NAME, VERSION, ModelFile, model_path
from tinysubnets.format.folder import load, reserve, save
from tinysubnets.format.hub import pull, push
from tinysubnets.format.inspect import check, inspect
from tinysubnets.format.io import Contents, encode, read_contents

__all__ = [
    "FILE_NAME",
    "VERSION",
    "Contents",
    "ModelFile",
    "check",
    "encode",
    "inspect",
    "load",
    "model_path",
    "pull",
    "push",
    "read_contents",
    "reserve",
    "save",
    "undo",
]
