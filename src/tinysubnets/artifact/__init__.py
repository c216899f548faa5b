"""The artifact: a learned store as one small file that loads anywhere; see docs/FORMAT.md."""

from tinysubnets.artifact.checking import check
from tinysubnets.artifact.container import FILE_NAME, VERSION, ModelFile, model_path
from tinysubnets.artifact.folder import load, save
from tinysubnets.artifact.hub import pull, push
from tinysubnets.artifact.inspection import inspect
from tinysubnets.artifact.reader import Contents, read_contents
from tinysubnets.artifact.writer import encode

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
    "save",
]
