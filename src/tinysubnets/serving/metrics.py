"""What a server counts, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_HELP = {
    "tsn_requests_total": "Requests answered, by path and status.",
    "tsn_predictions_total": "Inputs that got a prediction, by task.",
    "tsn_reloads_total": "Model files found in place of another: taken over, or refused.",
    "tsn_request_seconds": "From the first byte of a request to its answer, by path.",
    "tsn_batch_samples": "Inputs that went through the network together.",
    "tsn_tasks": "Tasks of the model that is served.",
    "tsn_model_bytes": "Size of the model file that is served.",
    "tsn_waiting_requests": "Requests whose inputs wait for the network.",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, int]] = {}
        # For each set of labels: how many values fell between borders, and their sum.
        self._histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        self._borders: dict[str, tuple[float, ...]] = {
            "tsn_request_seconds": SECONDS,
            "tsn_batch_samples": SAMPLES,
        }

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        """Add to a counter."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            found = self._counters.setdefault(name, {})
            found[key] = found.get(key, 0) + by

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        key, borders = tuple(sorted(labels.items())), self._borders[name]
        with self._lock:
            found = self._histograms.setdefault(name, {})
            counts, total = found.get(key, ([0] * (len(borders) + 1), 0.0))
            counts[bisect_left(borders, value)] += 1
            found[key] = counts, total + value

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything, in Prometheus' text format.

        - `gauges`: values of this moment, by name.
        """
        lines: list[str] = []
        with self._lock:
            for name, counters in sorted(self._counters.items()):
                lines += _head(name, "counter")
                lines += [f"{name}{_braced(k)} {v}" for k, v in sorted(counters.items())]
            for name, histograms in sorted(self._histograms.items()):
                lines += _head(name, "histogram")
                for key, (counts, total) in sorted(histograms.items()):
                    below = 0
                    for border, number in zip((*self._borders[name], "+Inf"), counts, strict=True):
                        below += number
                        lines.append(f"{name}_bucket{_braced((*key, ('le', str(border))))} {below}")
                    lines.append(f"{name}_sum{_braced(key)} {total:.9g}")
                    lines.append(f"{name}_count{_braced(key)} {below}")
        for name, value in gauges.items():
            lines += [
                *_head(name, "gauge"),
                f"{name} {value:g}" if value % 1 else f"{name} {value:.0f}",
            ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}"]


def _braced(labels: Labels) -> str:
    """Labels in braces; what a value holds cannot end it."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return plain.replace("\r", " ")  # which some readers take for the end of a line
