"""`tsn serve`: real requests to a real server, while its model is replaced and by bad clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import chromium
from digit_tasks import digits
from tinysubnets import Architecture, SubnetStore, Task, TinySubNets, networks
from tinysubnets.cli import main
from tinysubnets.commands.serve import listener
from tinysubnets.errors import SettingError
from tinysubnets.files import atomic_write
from tinysubnets.tasks.preprocessing import Preprocessing

pytest.importorskip("fastapi", reason="needs the extra `serve`")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `serve`")
Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SOURCES = Path(__file__).parent.parent / "src"
SECRET = "a long secret"


def learned(folder: Path, mark: str, seed: int) -> Path:
    """A model of two tasks whose labels all begin with a mark; the file."""
    x, y = digits()
    net = networks.build("mlp", in_features=64, hidden=(32, 32))
    learner = TinySubNets(
        Architecture(net), density=0.3, seed=seed, training={"epochs": 3}, pruning={"iterations": 2}
    )
    labels = np.array([f"{mark}{n}" for n in y])
    scaled = x * 15  # 0 to 240, as pictures have them
    learner.learn(Task.from_arrays("digits", scaled[:600], labels[:600]))
    odd = np.where(y % 2, f"{mark}<b>odd</b>", f"{mark}even")
    learner.learn(Task.from_arrays('p"ar\\ity', scaled[:300], odd[:300]))
    return learner.save(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {mark: learned(folder / mark, mark, i) for i, mark in enumerate("AB")}


class Client:
    """One connection that stays open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=300)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Status, answer and headers; `body` is bytes, or plain data that goes as JSON."""
        if body is not None and not isinstance(body, bytes):
            body, headers = (
                json.dumps(body).encode(),
                {"content_type": "application/json"} | headers,
            )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, named)
        answer = self.connection.getresponse()
        data = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(data) if is_json else data.decode(), answer.headers


@contextlib.contextmanager
def process(model: Path, *options: str) -> Iterator[str]:
    """The command in a process of its own; gives its address."""
    command = [sys.executable, "-m", "tinysubnets", "serve", str(model), "--port", "0", *options]
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line + server.stdout.read()
        yield found[0]
    finally:
        server.terminate()
        server.communicate(timeout=300)


@contextlib.contextmanager
def thread(model: Path, extra: dict[str, str] | None = None, **settings: Any) -> Iterator[str]:
    """The same server in a thread of this process, with pages of the test's own beside."""
    from fastapi.responses import HTMLResponse

    from tinysubnets.serving.app import ServeSettings, make_app
    from tinysubnets.serving.engine import Models

    app = make_app(Models(model), ServeSettings(**settings))

    async def both(scope: Any, receive: Any, send: Any) -> None:
        own = (extra or {}).get(scope.get("path", ""))
        await (app if own is None else HTMLResponse(own))(scope, receive, send)

    listening = listener("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(both, log_level="warning", ws="none"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join(300)
        listening.close()


@pytest.fixture(scope="module")
def address(made: dict[str, Path]) -> Iterator[str]:
    with thread(made["A"], max_body=200_000, max_pixels=100_000, max_inputs=20) as found:
        yield found


def picture(number: int = 0, side: int = 8) -> bytes:
    out = io.BytesIO()
    pixels = (digits()[0][number] * 15).astype(np.uint8).reshape(8, 8)
    Image.fromarray(pixels).resize((side, side)).save(out, "png")
    return out.getvalue()


@pytest.mark.slow
def test_tasks_health_and_the_interface(made: dict[str, Path], address: str) -> None:
    client = Client(address)
    status, found, headers = client.ask("GET", "/tasks")
    store = SubnetStore.load(made["A"].parent)
    assert status == 200 and [t["name"] for t in found["tasks"]] == list(store.tasks)
    assert found["model_bytes"] == made["A"].stat().st_size
    sizes = store.ledger().tasks
    assert [t["bytes"] for t in found["tasks"]] == [e.total / 8 for e in sizes.values()]
    assert found["tasks"][0]["inputs"] == ["uint8", [64]] and found["tasks"][0]["takes_images"]
    assert found["tasks"][0]["classes"] == list(store.subnet("digits").classes)
    assert headers["x-content-type-options"] == "nosniff"
    assert client.ask("GET", "/health")[1]["model"] == found["model"]
    schema = client.ask("GET", "/openapi.json")[1]
    assert {"/tasks", "/predict", "/health", "/metrics"} <= set(schema["paths"])
    docs = client.ask("GET", "/docs")[1]
    assert "POST /predict" in docs and "//" not in docs.replace("<!doctype", "")


def test_pictures_and_numbers_get_the_store_s_answers(made: dict[str, Path], address: str) -> None:
    store, client = SubnetStore.load(made["A"].parent), Client(address)
    x = (digits()[0][:9] * 15).astype(np.uint8)
    for task in store.tasks:
        wanted = store.predict(task, x).tolist()
        shares = store.predict_proba(task, x)
        body = {"task": task, "inputs": x.tolist(), "top": 2}
        status, found, _ = client.ask("POST", "/predict", body)
        assert status == 200 and [p["label"] for p in found["predictions"]] == wanted
        given = [p["probability"] for p in found["predictions"]]
        assert np.allclose(given, shares.max(1), atol=1e-5)
        assert all(len(p["classes"]) == 2 for p in found["predictions"])
        for i in range(2):
            path = f"/predict?task={quote(task)}"
            status, found, _ = client.ask("POST", path, picture(i), content_type="image/png")
            assert status == 200 and found["predictions"][0]["label"] == wanted[i]
            alone = client.ask("POST", "/predict", {"task": task, "inputs": x[i].tolist()})[1]
            assert alone["predictions"][0]["label"] == wanted[i]
    large = picture(3, 64)  # made smaller as `tsn predict` does
    assert client.ask("POST", "/predict?task=digits", large, content_type="image/png")[0] == 200


def test_pictures_of_any_size_are_preprocessed_as_they_were_learned(tmp_path: Path) -> None:
    how = Preprocessing("L", 8, 8, resize=12)  # a border is cut off
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 1, 8, 8), np.uint8)
    labels = np.where(pixels.mean((1, 2, 3)) > pixels.mean(), "bright", "dark")
    task = replace(Task.from_arrays("light", pixels, labels), preprocessing=how)
    net = networks.build("small-cnn", in_channels=1, image_size=8)
    learner = TinySubNets(Architecture(net), device="cpu", epochs=1)
    learner.learn(task)
    with thread(learner.save(tmp_path)) as address:
        client = Client(address)
        for seed in range(4):
            photo = Image.fromarray(rng.integers(0, 256, (20 + 9 * seed, 30, 3), np.uint8))
            body = io.BytesIO()
            photo.save(body, "png")
            for path in ("/predict?task=light", "/predict"):
                status, told, _ = client.ask(
                    "POST", path, body.getvalue(), content_type="image/png"
                )
                (row,) = told["predictions"]
                best, shares = row["classes"][0], learner.store.predict_proba("light", photo)
                assert status == 200 and [best["label"]] == learner.predict("light", photo).tolist()
                assert best["probability"] == pytest.approx(float(shares.max()), abs=1e-5)
        client.connection.close()


def test_without_a_name_the_task_is_found_out(made: dict[str, Path], address: str) -> None:
    store, client = SubnetStore.load(made["A"].parent), Client(address)
    x = (digits()[0][:9] * 15).astype(np.uint8)
    wanted = store.predict(x)
    status, found, _ = client.ask("POST", "/predict", {"inputs": x.tolist()})
    assert status == 200
    rows = found["predictions"]
    assert [r["task"] for r in rows] == wanted.tasks.tolist()
    assert [r["label"] for r in rows] == wanted.labels.tolist()
    assert [r["unknown"] for r in rows] == wanted.unknown.tolist()
    assert np.allclose([r["task_confidence"] for r in rows], wanted.confidence, atol=1e-4)
    one = client.ask("POST", "/predict", picture(2), content_type="image/png")[1]["predictions"][0]
    assert (one["task"], one["label"]) == (wanted.tasks[2], wanted.labels[2])
    for bad in ([0] * 63, [], [[]], 3, "x", [[0] * 64, 1]):
        assert client.ask("POST", "/predict", {"inputs": bad})[0] in (400, 422)


def bomb(width: int = 30_000, height: int = 30_000) -> bytes:
    """A small PNG that says it has many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    body = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


JSON, PNG = "application/json", "image/png"
HOSTILE: list[tuple[int, bytes, str]] = [
    (400, b"", JSON),
    (400, b"{", JSON),
    (400, b"[" * 100_000, JSON),
    (400, b'{"inputs": NaN, "task": "digits"}', JSON),
    (400, b'{"inputs": ' + b"9" * 5000 + b', "task": "digits"}', JSON),
    (400, b'{"inputs": [[1, 2], [3]], "task": "digits"}', JSON),
    (400, b'{"inputs": ["a"], "task": "digits"}', JSON),
    (400, b'{"inputs": [1, 2, 3], "task": "digits"}', JSON),
    (400, json.dumps({"inputs": [0.5] * 64, "task": "digits"}).encode(), JSON),
    (400, json.dumps({"inputs": [256] * 64, "task": "digits"}).encode(), JSON),
    (400, json.dumps({"inputs": [1e300] * 64, "task": "digits"}).encode(), JSON),
    (400, b'{"inputs": [1], "task": "digits", "path": "/etc/passwd"}', JSON),
    (400, json.dumps({"inputs": [0] * 64, "task": "digits", "top": -1}).encode(), JSON),
    (404, json.dumps({"inputs": [0] * 64, "task": ["digits"]}).encode(), JSON),
    (404, json.dumps({"inputs": [0] * 64, "task": "x" * 10_000}).encode(), JSON),
    (413, json.dumps({"inputs": [[0] * 64] * 21, "task": "digits"}).encode(), JSON),
    (413, b" " * 200_001, JSON),
    (400, b"\xff\xfe\x00", JSON),
    (400, b"no picture", PNG),
    (400, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", PNG),
    (400, picture()[:60], PNG),
    (413, bomb(), PNG),
    (413, bomb(2000, 2000), PNG),
    (413, bytes(200_001), PNG),
    (415, b"task=digits", "application/x-www-form-urlencoded"),
    (415, b"x", "multipart/form-data; boundary=x"),
]


def test_hostile_bodies_are_refused_and_the_server_goes_on(address: str) -> None:
    for wanted, body, kind in HOSTILE:
        path = "/predict?task=digits" if kind == PNG else "/predict"
        status, found, _ = Client(address).ask("POST", path, body, content_type=kind)
        assert status == wanted, (body[:60], kind, found)
        assert len(found["detail"]) < 600
    good = {"task": "digits", "inputs": [0] * 64}
    assert Client(address).ask("POST", "/predict", good)[0] == 200


def test_a_picture_needs_no_content_type(address: str) -> None:
    told = Client(address).ask("POST", "/predict?task=digits", picture(), content_type=PNG)
    assert told[0] == 200
    for kind in ({"content_type": "application/x-www-form-urlencoded"}, {}):  # as curl sends it
        found = Client(address).ask("POST", "/predict?task=digits", picture(), **kind)
        assert found[:2] == told[:2]


def test_a_port_in_use_is_told_in_few_words() -> None:
    with listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError) as caught:
            listener("127.0.0.1", port)
    said = f"cannot listen on 127.0.0.1, port {port}: address already in use. Give another"
    assert str(caught.value).startswith(said)


def test_a_body_without_a_told_length_is_cut_off(address: str) -> None:
    client = Client(address)
    parts = (bytes(50_000) for _ in range(10))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.connection.request(
            "POST", "/predict", parts, {"Content-Type": "image/png"}, encode_chunked=True
        )
        assert client.connection.getresponse().status == 413
    assert Client(address).ask("GET", "/health")[0] == 200


def test_a_body_that_never_ends_is_given_up(made: dict[str, Path]) -> None:
    with thread(made["A"], body_seconds=0.2) as slow:
        host, port = slow.removeprefix("http://").split(":")
        # One that tells that it is too long is not even waited for.
        for size, status in ((100, b"408"), (10**12, b"413")):
            with socket.create_connection((host, int(port)), timeout=300) as connection:
                connection.sendall(
                    b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
                    b"Content-Length: %d\r\n\r\nabc" % size
                )
                assert status in connection.recv(100)


def test_bad_inputs_do_not_spoil_those_beside_them(made: dict[str, Path]) -> None:
    """Requests of one batch, of which one cannot be answered."""
    from tinysubnets.errors import TaskError
    from tinysubnets.serving.engine import Models, _answers, _Waiting

    served = Models(made["A"]).current
    x = (digits()[0][:3] * 15).astype(np.float32)
    bad = np.full((1, 64), np.nan, np.float32)

    async def both() -> list[Any]:
        return _answers([_Waiting(served, "digits", x), _Waiting(served, "digits", bad)])

    good, failed = asyncio.run(both())
    assert np.allclose(good, served.store.predict_proba("digits", x), atol=1e-5)
    assert isinstance(failed, TaskError)


def test_counters_are_in_prometheus_format(made: dict[str, Path]) -> None:
    with thread(made["A"]) as found:
        client = Client(found)
        for _ in range(3):
            client.ask("POST", "/predict", {"task": 'p"ar\\ity', "inputs": [[0] * 64] * 2})
        client.ask("GET", "/nothing/such")
        status, text, headers = client.ask("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['tsn_requests_total{path="/predict",status="200"}'] == "3"
    assert lines['tsn_requests_total{path="other",status="404"}'] == "1"
    assert lines['tsn_predictions_total{task="p\\"ar\\\\ity"}'] == "6"
    assert lines['tsn_request_seconds_bucket{path="/predict",le="+Inf"}'] == "3"
    assert lines["tsn_batch_samples_sum"] == "6" and lines["tsn_tasks"] == "2"
    assert lines["tsn_model_bytes"] == str(made["A"].stat().st_size)
    counts = [int(v) for n, v in lines.items() if n.startswith("tsn_batch_samples_bucket")]
    assert counts == sorted(counts)


def test_a_token_is_asked_for(made: dict[str, Path]) -> None:
    with thread(made["A"], token=SECRET) as found:
        client = Client(found)
        body = {"task": "digits", "inputs": [0] * 64}
        for bad in ({}, {"authorization": "Bearer wrong"}, {"authorization": SECRET}):
            for method, path in (("GET", "/tasks"), ("POST", "/predict"), ("GET", "/metrics")):
                status, answer, headers = client.ask(method, path, body, **bad)
                assert status == 401 and headers["www-authenticate"] == "Bearer", answer
        good = {"authorization": f"Bearer {SECRET}"}
        assert client.ask("POST", "/predict", body, **good)[0] == 200
        assert client.ask("GET", "/health")[0] == client.ask("GET", "/")[0] == 200


@pytest.mark.slow
def test_eight_clients_while_the_model_is_replaced_twenty_times(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """No request fails, and every answer is that of the version it names."""
    place = tmp_path / "model.safetensors"
    files = {mark: path.read_bytes() for mark, path in made.items()}
    x = (digits()[0][:40] * 15).astype(np.uint8)
    wanted = {}
    for path in made.values():
        store = SubnetStore.load(path.parent)
        wanted[store.saved_as] = store.predict("digits", x).tolist()
    atomic_write(place, files["A"])
    answers: list[tuple[int, int, Any]] = []
    is_over = threading.Event()

    def client(number: int) -> None:
        mine, i = Client(found), number
        while not is_over.is_set():
            i = (i + 1) % len(x)
            body = {"task": "digits", "inputs": x[i].tolist()}
            answers.append((i, *mine.ask("POST", "/predict", body)[:2]))
            time.sleep(0.005)  # leave some of the machine to others

    with process(place, "--poll", "0.02", "--device", "cpu") as found:
        clients = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for one in clients:
            one.start()
        try:
            watcher = Client(found)
            for number in range(20):
                before = watcher.ask("GET", "/health")[1]["model"]
                atomic_write(place, files["BA"[number % 2]])
                wait_for(lambda: watcher.ask("GET", "/health")[1]["model"] != before)  # noqa: B023
        finally:
            is_over.set()
            for one in clients:
                one.join()
        # A file that cannot be read is not served, and says so; a good one is again.
        place.write_bytes(files["B"][:-1])
        wait_for(lambda: watcher.ask("GET", "/health")[1]["refused"])
        assert (
            watcher.ask("POST", "/predict", {"task": "digits", "inputs": x[0].tolist()})[0] == 200
        )
        atomic_write(place, files["B"])
        wait_for(lambda: not watcher.ask("GET", "/health")[1]["refused"])
        text = watcher.ask("GET", "/metrics")[1]
    assert {status for _, status, _ in answers} == {200}
    for i, _, answer in answers:
        assert answer["predictions"][0]["label"] == wanted[answer["model"]][i]
    assert {answer["model"] for _, _, answer in answers} == set(wanted)
    assert 'tsn_reloads_total{result="taken"} 21' in text
    assert os.listdir(tmp_path) == ["model.safetensors"]  # nothing was written


def wait_for(condition: Any, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_what_cannot_be_served_is_told(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(made["A"])
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert main(["serve", model, "--token-file", str(tmp_path / "none")]) == 2
    assert main(["serve", model, "--batch", "0"]) == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", model, "--port", str(taken.getsockname()[1])]) == 2
    assert main(["serve", model, "--port", "80000"]) == 2
    told = capsys.readouterr().err
    assert ".." not in told.replace(str(tmp_path), "")
    assert "no model at" in told and "--token-file" in told and "Give another --port" in told


# Chooses a picture on the page as a person would, and leaves what it then shows.
DRIVER = """
<!doctype html><iframe id="page" src="/" style="width:360px;height:900px"></iframe>
<pre id="seen"></pre>
<script>
const bytes = Uint8Array.from(atob("%s"), c => c.charCodeAt(0));
document.getElementById("page").onload = async event => {
  const page = event.target.contentDocument, at = id => page.getElementById(id);
  const until = async ready => { while (!ready()) await new Promise(r => setTimeout(r, 20)); };
  await until(() => at("task").options.length);
  const box = new DataTransfer();
  box.items.add(new File([bytes], "digit.png", {type: "image/png"}));
  const say = () => ({task: at("task").value, label: at("label").textContent,
    bars: page.querySelectorAll(".bar").length, facts: at("facts").textContent,
    about: at("about").textContent, problem: at("problem").hidden ? "" : at("problem").textContent,
    wide: page.documentElement.scrollWidth > 360, bold: at("label").querySelectorAll("b").length});
  const seen = [];
  at("task").value = "digits";
  at("file").files = box.files;
  at("file").dispatchEvent(new Event("change"));
  await until(() => !at("result").hidden);
  seen.push(say());
  at("task").selectedIndex = 2;  // and for another task
  at("task").dispatchEvent(new Event("change"));
  await until(() => at("facts").textContent !== seen[0].facts);
  seen.push(say());
  const bad = new DataTransfer();
  bad.items.add(new File(["nonsense"], "x.png", {type: "image/png"}));
  page.dispatchEvent(new DragEvent("drop", {dataTransfer: bad, bubbles: true}));
  await until(() => !at("problem").hidden);
  seen.push(say());
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(
    chromium.find() is None,
    reason="CHROMIUM IS MISSING: the page of `tsn serve` is NOT tested in a browser; "
    "run scripts/install_chromium.sh",
)
def test_the_page_in_chromium(made: dict[str, Path]) -> None:

    number = int(np.flatnonzero(digits()[1] % 2)[0])
    store = SubnetStore.load(made["A"].parent)
    x = (digits()[0][number : number + 1] * 15).astype(np.uint8)
    driver = DRIVER % base64.b64encode(picture(number)).decode()
    with thread(made["A"], {"/driver": driver}) as found:
        text = chromium.dom(f"{found}/driver")
    seen = re.search(r'<pre id="seen">(.*?)</pre>', text, re.S)
    assert seen and seen[1], text[-2000:]
    first, second, third = json.loads(html.unescape(seen[1]))
    assert first["label"] == store.predict("digits", x)[0] and first["bars"] == 5
    assert first["task"] == "digits" and first["about"].startswith("2 tasks in ")
    assert re.search(
        r"Task digits · confidence [\d.]+ % · [\d.]+\skB of the model's", first["facts"]
    )
    assert second["label"] == store.predict('p"ar\\ity', x)[0] and not second["bold"]
    assert not first["wide"] and not second["wide"]
    assert "not a picture" in third["problem"] and not first["problem"]
