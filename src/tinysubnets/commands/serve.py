"""The command that serves a model over HTTP; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tinysubnets.commands.model import add_net, command, given_base, own_network
from tinysubnets.errors import ArtifactError, SettingError, not_installed
from tinysubnets.text import for_terminal

TOKEN_VARIABLE = "TINYSUBNETS_SERVE_TOKEN"
MAX_CONNECTIONS = 256


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    serve = command(subparsers, "serve", "answer requests over HTTP, with a page to try it", _serve)
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)"
    )
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    serve.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"ask clients for the token in this file, or in ${TOKEN_VARIABLE}",
    )
    serve.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    serve.add_argument(
        "--memory",
        type=int,
        default=512,
        metavar="MB",
        help="what decoded tasks may take between requests (default: 512)",
    )
    serve.add_argument(
        "--batch", type=int, default=64, metavar="N", help="inputs computed together (default: 64)"
    )
    serve.add_argument(
        "--batch-ms",
        type=float,
        default=2.0,
        metavar="MS",
        help="how long the first of a batch waits for others (default: 2)",
    )
    serve.add_argument(
        "--max-body", type=float, default=8, metavar="MB", help="of a request (default: 8)"
    )
    serve.add_argument(
        "--max-pixels",
        type=float,
        default=16,
        metavar="MILLIONS",
        help="of a picture, before it is decoded (default: 16)",
    )
    serve.add_argument(
        "--poll",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="how often to look whether the model file was replaced (default: 0.5)",
    )
    add_net(serve)


def _serve(options: argparse.Namespace) -> int:
    try:
        import uvicorn

        from tinysubnets.serving.app import ServeSettings, make_app
    except ImportError as error:
        raise SettingError(not_installed("tsn serve", error.name, "serve")) from None
    import torch

    from tinysubnets.serving.engine import Models
    from tinysubnets.training.precision import fitting_threads, pick_device

    if options.memory < 0:
        raise SettingError(f"--memory {options.memory} is not allowed; give 0 or more.")
    settings = ServeSettings(
        token=_token(options.token_file),
        max_body=int(options.max_body * 1e6),
        max_pixels=int(options.max_pixels * 1e6),
        batch_size=options.batch,
        batch_ms=options.batch_ms,
        poll_seconds=options.poll,
    )
    models = Models(
        options.model,
        net=own_network(options),
        base=given_base(options),
        device=pick_device(options.device),
        memory_bytes=options.memory * 10**6,
        say=_say,
    )
    store = models.current.store
    if not store.tasks:
        raise ArtifactError("the model has no tasks to serve.")
    torch.set_num_threads(fitting_threads(store.layout.num_weights))
    listening = listener(options.host, options.port)
    address = _address(listening)
    if settings.token is None and not _is_loopback(options.host):
        _say("everybody who reaches this address may ask; --token-file lets in those who know it")
    print(f"{len(store.tasks)} tasks at {address}  (Ctrl-C stops)", flush=True)
    config = uvicorn.Config(
        make_app(models, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _token(file: str | None) -> str | None:
    """The token; never from the command line, which other users of a machine see."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--token-file {file} cannot be read: {error}.") from None


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        # asyncio sends at once only on sockets that say they are TCP; else answers, which go out in
        # two parts, wait some 40 ms for the client to acknowledge the first.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, made.detach())
    except (OSError, OverflowError) as error:
        told = getattr(error, "strerror", None) or str(error)
        reason = told.partition(" (while attempting")[0].rstrip(".").lower()
        raise SettingError(
            f"cannot listen on {host}, port {port}: {reason}. Give another --port, or 0 for a free "
            "one."
        ) from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(text: str) -> None:
    print(f"tsn: {for_terminal(text)}", file=sys.stderr, flush=True)
