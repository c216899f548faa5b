"""Requests a second: a task of a model behind `tsn serve`, against the plain dense network there.

Each server is a process of its own: `python -m benchmarks.serving ours FOLDER`, or `dense`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.many_tasks import tiny_task
from tinysubnets import networks
from tinysubnets.commands.serve import listener
from tinysubnets.method.learner import TinySubNets
from tinysubnets.nn.architecture import Architecture
from tinysubnets.serving.engine import Models

CLIENTS, ROUNDS = 8, 3


def requests_per_second(seconds: float = 3.0) -> dict[str, Any]:
    """Eight clients ask one input at a time, in turns of both servers; medians of three rounds."""
    net = networks.build("mlp", classes=2, in_features=8, hidden=(100, 100))
    learner = TinySubNets(Architecture(net), training={"epochs": 1}, pruning={"iterations": 2})
    for number in range(5):
        learner.learn(tiny_task(number))
    with tempfile.TemporaryDirectory() as folder:
        learner.save(folder)
        rates: dict[str, list[float]] = {"ours": [], "dense": []}
        with _running("ours", folder) as first, _running("dense", folder) as second:
            for _ in range(ROUNDS):
                rates["ours"].append(_rate(first, seconds))
                rates["dense"].append(_rate(second, seconds))
    per_second = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "what": f"tsn serve, {CLIENTS} clients, requests/s of the plain dense network's",
        "ratio": per_second["ours"] / per_second["dense"],
        "ours_per_s": per_second["ours"],
        "dense_per_s": per_second["dense"],
    }


def _make_dense(models: Models, net: torch.nn.Module) -> None:
    """Let a dense network answer instead of the decoded subnets."""
    net.eval()

    @torch.no_grad()
    def probabilities(task: str, inputs: np.ndarray) -> np.ndarray:
        return torch.softmax(net(torch.from_numpy(inputs)), 1).numpy()

    models.current.store.predict_proba = probabilities  # type: ignore[method-assign]


@contextlib.contextmanager
def _running(kind: str, folder: str) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    command = [sys.executable, "-m", "benchmarks.serving", kind, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


def _serve(kind: str, folder: str) -> None:
    """Serve until the process is ended; prints the port."""
    torch.set_num_threads(1)
    models = Models(folder)
    if kind == "dense":
        net = networks.build("mlp", classes=2, in_features=8, hidden=(100, 100))
        _make_dense(models, net)
    listening = listener("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    import uvicorn  # as FastAPI, an extra that a machine which only trains may lack

    from tinysubnets.serving.app import make_app

    config = uvicorn.Config(make_app(models), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def _rate(port: int, seconds: float) -> float:
    """Answers a second to all clients together, each on a connection that stays open."""
    counts, end = [0] * CLIENTS, time.perf_counter() + seconds
    body = json.dumps({"task": "task 0", "inputs": [0.5] * 8}).encode()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.perf_counter() < end:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
    begin = time.perf_counter()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sum(counts) / (time.perf_counter() - begin)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
