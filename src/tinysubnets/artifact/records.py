"""The records section: the learner's settings and what is known of each task, as deflated JSON."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from tinysubnets.artifact.container import canonical, parse
from tinysubnets.artifact.wire import Reader, Writer
from tinysubnets.errors import ArtifactError
from tinysubnets.subnet import Subnet

_RAW_DEFLATE = -15
_KINDS: Mapping[str, Any] = {
    "accuracy": (int, float),
    "owned": (int, float),
    "reason": str,
    "nearest": str,
}


def max_text_bytes(num_tasks: int) -> int:
    """The most text that the records of so many tasks may hold."""
    return (1 << 16) + (num_tasks << 13)


def write_records(settings: Mapping[str, Any], subnets: Iterable[Subnet]) -> bytes:
    """The section: the length of the text, then the text as one raw deflate stream."""
    tasks = [_record(s) for s in subnets]
    text = canonical({"settings": settings, "tasks": tasks}).encode()
    if len(text) > max_text_bytes(len(tasks)):
        raise ArtifactError(f"settings and reasons take {len(text)} bytes; shorten them.")
    coder = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE)
    out = Writer()
    out.varint(len(text))
    out.raw(coder.compress(text) + coder.flush())
    return out.bytes()


def read_records(data: Reader, num_tasks: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings, and one record per task; at most the expected text is decompressed."""
    size = data.varint(max_text_bytes(num_tasks))
    decoder = zlib.decompressobj(_RAW_DEFLATE)
    try:
        text = decoder.decompress(data.rest(), size + 1)
    except zlib.error as error:
        raise data.damage(f"{error}.") from None
    if len(text) != size or not decoder.eof or decoder.unused_data:
        raise data.damage(f"{size} bytes of text were expected.")
    value = parse(text, "text of the records")
    settings = value.get("settings") if isinstance(value, dict) else None
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(settings, dict) or not isinstance(tasks, list):
        raise data.damage("settings and tasks are missing.")
    if len(tasks) != num_tasks or not all(map(_is_record, tasks)):
        raise data.damage("not one valid record per task.")
    return settings, tasks


def _record(subnet: Subnet) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if not math.isnan(subnet.valid_accuracy):
        record["accuracy"] = subnet.valid_accuracy
    if not math.isnan(subnet.owned_before_pruning):
        record["owned"] = subnet.owned_before_pruning
    if subnet.decision is not None:
        record["reason"] = subnet.decision.reason
        if subnet.decision.nearest is not None:
            record["nearest"] = subnet.decision.nearest
    return record


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and all(
        k in _KINDS and isinstance(v, _KINDS[k]) and not isinstance(v, bool)
        for k, v in value.items()
    )
