"""Methods that a compiler calls as they are instead of following what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """The method, which `torch.compile` leaves out of its graphs.

    `torch.compiler.disable` does the same, but loads the compiler at once: seconds, for programs
    that never compile anything.
    """
    outside = torch._disable_dynamo(method)  # loads the compiler when it is first called

    @wraps(method)
    def call(*arguments: Any) -> Any:
        return outside(*arguments) if torch.compiler.is_compiling() else method(*arguments)

    return call  # type: ignore[return-value]
