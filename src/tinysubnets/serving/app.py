"""The HTTP side of `tsn serve`: paths, what a request may hold, and what it is answered.

Nothing that a client sends is written to disk, and nothing is made of it before its size is known.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import html
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinysubnets import __version__
from tinysubnets.datasets.user_files import image_form, image_input
from tinysubnets.errors import DataError, SettingError, TaskError
from tinysubnets.model.subnet import Subnet
from tinysubnets.report import theme
from tinysubnets.serving.engine import Batcher, Busy, Models, Routed, Served

PATHS = ("/", "/docs", "/openapi.json", "/tasks", "/predict", "/health", "/metrics")
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/health")  # that tell nothing and need no token
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")  # none that starts other programs
# Where the client names no kind a picture tells it itself; `curl --data-binary` says it is a form.
UNTOLD = ("", "application/x-www-form-urlencoded")
SIGNATURES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF8", b"II*\0", b"MM\0*")
MAX_NAMES = 20  # tasks that an error lists
MAX_TOP = 1000
MAX_DIMS = 8
SMALL_BODY = 1 << 14  # bytes of JSON that are read without a thread


@dataclass(frozen=True)
class ServeSettings:
    """What a server allows.

    - `token`: what clients have to send as `Authorization: Bearer …`; None lets everybody in.
    - `max_body`: the bytes of a request's body.
    - `max_pixels`: the pixels of an image, before it is decoded.
    - `max_inputs`: inputs in one request; `max_numbers`: numbers in its JSON.
    - `max_waiting`: requests that wait for the network.
    - `body_seconds`: how long a body may take to arrive.
    - `batch_size`, `batch_ms`: inputs that go through the network together, and how long the first
      of them waits for others.
    - `poll_seconds`: how often the model file is looked at.
    """

    token: str | None = None
    max_body: int = 8 << 20
    max_pixels: int = 16 << 20
    max_inputs: int = 256
    max_numbers: int = 1 << 20
    max_waiting: int = 256
    body_seconds: float = 30.0
    batch_size: int = 64
    batch_ms: float = 2.0
    poll_seconds: float = 0.5

    def __post_init__(self) -> None:
        for name in ("max_body", "max_pixels", "max_inputs", "max_numbers", "max_waiting"):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"{name} = {getattr(self, name)} is not allowed; give 1 or more."
                )
        if self.batch_size < 1 or not 0 <= self.batch_ms <= 1000:
            raise SettingError("a batch has at least 1 input and waits 0 to 1000 ms.")
        if not self.poll_seconds > 0:
            raise SettingError(
                f"poll_seconds = {self.poll_seconds} is not allowed; give more than 0."
            )
        if self.token is not None and (not self.token.isascii() or len(self.token) < 8):
            raise SettingError("a token has at least 8 characters, all of them ASCII.")


class TaskInfo(BaseModel):
    """A task of the model.

    `bytes` are those of the file that belong to it alone, `inputs` the type and shape of one input
    where they are on record, `takes_images` whether a picture can become one.
    """

    name: str
    classes: list[int | str]
    inputs: tuple[str, list[int]] | None
    takes_images: bool
    bytes: int


class Tasks(BaseModel):
    """The model that is served; `model` is the hash that stands for its file."""

    model: str
    model_bytes: int
    tasks: list[TaskInfo]


class ClassShare(BaseModel):
    """A class and its probability."""

    label: int | str
    probability: float


class Prediction(BaseModel):
    """The most probable classes of one input, the first of them once more as its label.

    Where the request named no task, `task_confidence` is how sure it is that it is this `task`, and
    `unknown` whether no task claims the input; both are null where it did.
    """

    label: int | str
    probability: float
    classes: list[ClassShare]
    task: str
    task_bytes: int
    task_confidence: float | None = None
    unknown: bool | None = None


class Predictions(BaseModel):
    """One prediction for each input, all by one version of the model."""

    model: str
    model_bytes: int
    predictions: list[Prediction]


class Health(BaseModel):
    """Whether answers are given; `refused` tells why a newer model file is not served."""

    status: str
    model: str
    tasks: int
    refused: str | None


def make_app(models: Models, settings: ServeSettings | None = None) -> FastAPI:
    """The application that serves a model."""
    limits = settings or ServeSettings()
    metrics = models.metrics
    batcher = Batcher(
        metrics,
        max_samples=limits.batch_size,
        window=limits.batch_ms / 1000,
        max_waiting=limits.max_waiting,
    )
    decoders = asyncio.Semaphore(2)  # images and long texts that are unpacked at one time

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with models.watched(limits.poll_seconds):
            async with batcher.running():
                yield

    app = FastAPI(
        title="TinySubNets",
        version=__version__,
        description="Tasks of one model, each with classes of its own.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    page, policy = _page()
    app.add_middleware(_Door, settings=limits, models=models, policy=policy)

    @app.get("/", include_in_schema=False)
    def look() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(_docs(app.openapi()))

    @app.get("/tasks", summary="The tasks of the model")
    def tasks() -> Tasks:
        served = models.current
        listed = [
            TaskInfo(
                name=name,
                classes=list(subnet.classes),
                inputs=_inputs_of(subnet),
                takes_images=_takes_images(subnet),
                bytes=served.task_bytes[name],
            )
            for name, subnet in served.store.subnets.items()
        ]
        return Tasks(model=served.identity, model_bytes=served.file_bytes, tasks=listed)

    @app.post("/predict", summary="Classes and their probabilities", openapi_extra=_BODY)
    async def predict(
        request: Request,
        task: str | None = Query(None, description="its name; left out, it is found out"),
        top: int = Query(3, ge=1, le=MAX_TOP, description="classes to tell of each input"),
    ) -> Predictions:
        served = models.current  # to the end, whatever takes its place meanwhile
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_image = kind.startswith("image/") or kind == "application/octet-stream"
        if not is_image and kind not in ("application/json", *UNTOLD):
            raise _of_no_kind(kind)
        body = await _body(request, limits)
        if kind in UNTOLD:
            is_image = body.startswith(SIGNATURES)
            if not is_image:
                raise _of_no_kind(kind)
        if not is_image and len(body) <= SMALL_BODY:
            name, inputs, top = _from_json(body, served, task, top, limits)
        else:
            make = _from_image if is_image else _from_json
            async with decoders:
                name, inputs, top = await asyncio.to_thread(make, body, served, task, top, limits)
        try:
            routed: list[Routed] | None = None
            if name is None:
                routed = await batcher.routed(served, inputs)
            names = [name] * len(inputs) if routed is None else [r.task for r in routed]
            rows: dict[int, Prediction] = {}
            for one in dict.fromkeys(names):
                mine = [i for i, other in enumerate(names) if other == one]
                shares = await batcher.probabilities(served, str(one), inputs[mine])
                rows |= dict(zip(mine, _predictions(shares, served, str(one), top), strict=True))
        except TaskError as error:
            raise HTTPException(400, str(error)) from None
        except Busy:
            raise HTTPException(
                503, "too many requests wait already; try again.", {"Retry-After": "1"}
            ) from None
        for i, found in enumerate(routed or ()):
            rows[i].task_confidence, rows[i].unknown = found.confidence, found.is_unknown
        for row in rows.values():
            metrics.count("tsn_predictions_total", task=row.task)
        return Predictions(
            model=served.identity,
            model_bytes=served.file_bytes,
            predictions=[rows[i] for i in range(len(inputs))],
        )

    @app.get("/health", summary="Whether answers are given")
    def health() -> Health:
        served = models.current
        return Health(
            status="ok",
            model=served.identity,
            tasks=len(served.store.tasks),
            refused=models.refused,
        )

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    def prometheus() -> PlainTextResponse:
        served = models.current
        gauges = {
            "tsn_tasks": len(served.store.tasks),
            "tsn_model_bytes": served.file_bytes,
            "tsn_waiting_requests": len(batcher),
        }
        return PlainTextResponse(metrics.text(gauges), media_type="text/plain; version=0.0.4")

    return app


class _Door:
    """What every request passes: the token, the clock and the counters, and safe headers."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, models: Models, policy: str) -> None:
        self._app, self._metrics = app, models.metrics
        self._token = None if settings.token is None else f"Bearer {settings.token}".encode()
        self._headers = [
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
            (b"content-security-policy", policy.encode()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = dict(message, headers=[*message["headers"], *self._headers])
            await send(message)

        try:
            app = self._app if self._may_enter(scope) else _unauthorized()
            await app(scope, receive, answered)
        finally:
            self._metrics.count("tsn_requests_total", path=path, status=str(status))
            self._metrics.observe("tsn_request_seconds", time.perf_counter() - begin, path=path)

    def _may_enter(self, scope: Scope) -> bool:
        if self._token is None or scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # In a time that does not tell how much of a wrong token is right.
        return len(given) == 1 and hmac.compare_digest(given[0], self._token)


def _unauthorized() -> PlainTextResponse:
    text = json.dumps({"detail": "this server asks for a token: Authorization: Bearer …"})
    headers = {"WWW-Authenticate": "Bearer"}
    return PlainTextResponse(text, 401, headers, media_type="application/json")


# What a request holds.


async def _body(request: Request, limits: ServeSettings) -> bytes:
    """The body, never more of it than is allowed, and not for ever."""
    too_long = HTTPException(413, f"a body has at most {limits.max_body:,} bytes here.")
    told = request.headers.get("content-length", "0")
    if not told.isdigit() or int(told[:20]) > limits.max_body:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.max_body:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"no whole body in {limits.body_seconds:g} seconds.") from None
    if not size:
        raise HTTPException(400, "an empty body; send a picture or JSON.")
    return b"".join(parts)


def _of_no_kind(kind: str) -> HTTPException:
    return HTTPException(
        415,
        f"a body of type {kind[:80]!r}; send a picture as image/png (or another image type), or "
        "numbers as application/json.",
    )


def _task_of(served: Served, name: Any) -> Subnet:
    """The task that a request names."""
    tasks = served.store.subnets
    if not isinstance(name, str) or name not in tasks:
        names = [repr(t) for t in list(tasks)[:MAX_NAMES]]
        more = f", … ({len(tasks)} in all)" if len(tasks) > MAX_NAMES else ""
        raise HTTPException(
            404, f"unknown task {str(name)[:80]!r}. Known: {', '.join(names)}{more}."
        )
    return tasks[name]


def _like(subnets: Sequence[Subnet], what: str) -> Subnet:
    """One of the tasks that an input may be of, which all take the same kind of inputs."""
    # Pictures become inputs as each task has recorded.
    kinds = {str((_inputs_of(s), what == "pictures" and image_form(s))): s for s in subnets}
    if len(kinds) != 1:
        problem = "no task takes" if not kinds else "tasks of different inputs could take"
        raise HTTPException(422, f"{problem} {what}; name the task.")
    return next(iter(kinds.values()))


def _from_image(
    body: bytes, served: Served, task: str | None, top: int, limits: ServeSettings
) -> tuple[str | None, np.ndarray, int]:
    """The task if it is named, the one input and the number of classes to tell, from a picture."""
    tasks = served.store.subnets
    if task is None:
        subnet = _like([s for s in tasks.values() if _takes_images(s)], "pictures")
    else:
        subnet = _task_of(served, task)
    _check_pixels(body, limits.max_pixels)
    try:
        inputs = image_input(body, subnet, FORMATS)[None]
    except DataError as error:
        raise HTTPException(400, f"{str(error).rstrip('.')}.") from None
    return (subnet.name if task is not None or len(tasks) == 1 else None), inputs, top


def _check_pixels(body: bytes, most: int) -> None:
    """Refuse a picture of too many pixels by what it says itself, before any is decoded."""
    import io
    import warnings

    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # judged below
            with Image.open(io.BytesIO(body), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError as error:
        raise HTTPException(413, str(error)) from None
    except Exception:  # of many kinds, from Pillow's readers
        raise HTTPException(
            400, f"not a picture that can be read; allowed: {', '.join(FORMATS)}."
        ) from None
    if width * height > most:
        raise HTTPException(
            413, f"a picture of {width}x{height} pixels; at most {most:,} are allowed here."
        )


def _from_json(
    body: bytes, served: Served, task: str | None, top: int, limits: ServeSettings
) -> tuple[str | None, np.ndarray, int]:
    """The task if it is named, the inputs and the number of classes to tell, from JSON."""
    if sum(map(body.count, (b",", b"[", b"{"))) > limits.max_numbers:
        raise HTTPException(413, f"at most {limits.max_numbers:,} numbers in one request.")
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not valid JSON (which has no NaN).") from None
    known = {"task", "inputs", "top"}
    if not isinstance(value, dict) or "inputs" not in value or set(value) - known:
        raise HTTPException(
            400, 'give {"inputs": …}, and if you like "task" and "top", and nothing else.'
        )
    top = value.get("top", top)
    if type(top) is not int or not 1 <= top <= MAX_TOP:
        raise HTTPException(400, f"top is an integer from 1 to {MAX_TOP}.")
    task, tasks = value.get("task", task), served.store.subnets
    if task is not None or len(tasks) == 1:
        subnet = next(iter(tasks.values())) if task is None else _task_of(served, task)
        return subnet.name, _numbers(value["inputs"], subnet, limits.max_inputs), top
    shape = _shape(value["inputs"])
    could = [s for s in tasks.values() if s.sample and s.sample.shape in (shape, shape[1:])]
    subnet = _like(could, f"inputs of shape {list(shape)}")
    return None, _numbers(value["inputs"], subnet, limits.max_inputs), top


def _shape(value: Any) -> tuple[int, ...]:
    """The lengths of nested lists, by the first of each."""
    shape: list[int] = []
    while isinstance(value, list) and len(shape) < MAX_DIMS:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _numbers(value: Any, subnet: Subnet, max_inputs: int) -> np.ndarray:
    """Lists of numbers as inputs of a task: one input, or several."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # of lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "uif" or not array.ndim:
        raise HTTPException(400, "inputs are lists of numbers, all of one length.")
    sample = subnet.sample
    shape = None if sample is None else sample.shape
    if array.shape == shape or (shape is None and array.ndim == 1):
        array = array[None]
    if shape is not None and array.shape[1:] != shape:
        raise HTTPException(
            400,
            f"inputs of shape {list(array.shape)}; task {subnet.name!r} takes {list(shape)}, or "
            "several of these.",
        )
    if not 1 <= len(array) <= max_inputs:
        raise HTTPException(413, f"{len(array)} inputs; a request has 1 to {max_inputs} here.")
    wanted = np.dtype("float32" if sample is None else str(sample.dtype).removeprefix("torch."))
    with np.errstate(all="ignore"):
        made = array.astype(wanted)
    is_same = np.isfinite(made).all() if wanted.kind == "f" else np.array_equal(made, array)
    if not is_same:
        allowed = "finite numbers of float32" if wanted.kind == "f" else f"integers of {wanted}"
        if wanted == np.uint8:
            allowed = "raw pixels, integers from 0 to 255"
        raise HTTPException(400, f"task {subnet.name!r} takes {allowed}.")
    return made


# What it is answered.


def _predictions(shares: np.ndarray, served: Served, task: str, top: int) -> list[Prediction]:
    """The most probable classes of each input of a task."""
    out, classes = [], served.store.subnet(task).classes
    for row in shares:
        best = np.argsort(-row, kind="stable")[:top]
        found = [ClassShare(label=classes[i], probability=float(row[i])) for i in best]
        out.append(
            Prediction(
                label=found[0].label,
                probability=found[0].probability,
                classes=found,
                task=task,
                task_bytes=served.task_bytes[task],
            )
        )
    return out


def _inputs_of(subnet: Subnet) -> tuple[str, list[int]] | None:
    if subnet.sample is None:
        return None
    return str(subnet.sample.dtype).removeprefix("torch."), list(subnet.sample.shape)


def _takes_images(subnet: Subnet) -> bool:
    try:
        image_form(subnet)
    except DataError:
        return False
    return True


# Pages.


def _page() -> tuple[str, str]:
    """The page at /, and the policy by which a browser loads nothing but what is in it."""
    text = resources.files("tinysubnets.serving").joinpath("page.html").read_text(encoding="utf-8")
    text = text.replace("/*light*/", theme.variables(theme.LIGHT))
    text = text.replace("/*dark*/", theme.variables(theme.DARK))
    scripts = [_hash(found) for found in re.findall(r"<script>(.*?)</script>", text, re.S)]
    policy = (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _docs(schema: dict[str, Any]) -> str:
    """The interface as a plain page: every path, what it takes and an example."""
    style = (
        f":root {{ {theme.variables(theme.LIGHT)} color-scheme: light dark }} "
        f"@media (prefers-color-scheme: dark) {{ :root {{ {theme.variables(theme.DARK)} }} }} "
        "body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; "
        "max-width: 46rem; margin: 2rem auto; padding: 0 1rem } a { color: var(--accent) } "
        "pre { background: var(--surface); border: 1px solid var(--edge); border-radius: 8px; "
        "padding: .8rem; overflow-x: auto }"
    )
    parts = [f"<h1>{html.escape(schema['info']['title'])} {html.escape(schema['info']['version'])}"]
    parts.append('</h1><p><a href="openapi.json">openapi.json</a> is this as data.</p>')
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(about.get('summary', ''))}.</p>")
            for parameter in about.get("parameters", ()):
                told = html.escape(parameter.get("description", ""))
                parts.append(f"<p><code>?{html.escape(parameter['name'])}=</code> {told}</p>")
            for kind, content in about.get("requestBody", {}).get("content", {}).items():
                shown = html.escape(json.dumps(content.get("example", "a picture's bytes")))
                parts.append(f"<pre>Content-Type: {html.escape(kind)}\n\n{shown}</pre>")
            answer = about["responses"].get("200", {}).get("content", {})
            for content in answer.values():
                if reference := content.get("schema", {}).get("$ref"):
                    model = schema["components"]["schemas"][reference.rpartition("/")[2]]
                    fields = html.escape(", ".join(model["properties"]))
                    told = html.escape(model.get("description", ""))
                    parts.append(f"<p>Answer: {told} <code>{fields}</code></p>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>The interface</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{style}</style><body>{''.join(parts)}</body></html>"
    )


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "inputs": {
                            "type": "array",
                            "items": {},
                            "description": "one input, or several, as nested lists of numbers",
                        },
                        "task": {"type": "string", "description": "the task's name"},
                        "top": {"type": "integer", "minimum": 1, "maximum": MAX_TOP},
                    },
                },
                "example": {"task": "birds", "inputs": [[0.5, 0.25, 0.125]], "top": 3},
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
