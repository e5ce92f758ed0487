"""The server over HTTP: one item per request and a hundred, beside the same stack without Redrive, and beside the
embedded broker. The server has one core and the load the other."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Bar, Case
from benchmarks.load import AsyncStep, Measurement, payload, rate, run_callers
from benchmarks.subject import QUEUE, create_queue, fill, open_async_broker, open_broker, run_async, url

GROUP = "HTTP: one core for the server, one for the load"
TOKENS = {"": "", ".token": " with a token"}
WORDS = {"put": "produce", "lease_complete": "lease and complete"}
CONNECTIONS = {1: 64, 100: 8}
SECONDS = 3.0
BACKLOG = {1: 80_000, 100: 900_000}
SERVER_CORE, LOAD_CORE = 0, 1
STARTING_SECONDS = 30.0
EMBEDDED_CALLERS = 8


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(*command: str) -> Iterator[int]:
    """A server in a process of its own, on its own core; `PORT` in the command is where it listens."""
    port = free_port()
    arguments = [str(port) if part == "PORT" else part for part in command]
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        preexec_fn=_on_core(SERVER_CORE),
    )
    try:
        end = time.monotonic() + STARTING_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(arguments)} does not listen")
            time.sleep(0.02)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _on_core(core: int) -> Any:
    if (os.cpu_count() or 1) < 2 or not hasattr(os, "sched_setaffinity"):
        return None
    return lambda: os.sched_setaffinity(0, {core})


def load(port: int, kind: str, items: int, token: str = "") -> Measurement:
    """Items per second, and how busy the load was: it must not be what limits the figure."""
    command = [sys.executable, "-m", "benchmarks.http_load", str(port), kind, str(CONNECTIONS[items]), str(items)]
    done = subprocess.run(
        [*command, str(SECONDS), token], cwd=ROOT, capture_output=True, text=True, preexec_fn=_on_core(LOAD_CORE)
    )
    if done.returncode:
        raise RuntimeError(f"the load ended with {done.returncode}: {done.stderr[-500:]}")
    answer = json.loads(done.stdout)
    return rate(
        answer["items"],
        answer["seconds"],
        connections=CONNECTIONS[items],
        requests_per_second=round(answer["requests"] / answer["seconds"]),
        load_busy=round(answer["busy"], 2),
    )


def redrive(kind: str, items: int, directory: Path, *, program: str = "redrive", token: bool = False) -> Measurement:
    with open_broker(directory) as broker:
        create_queue(broker)
        if kind == "lease_complete":
            fill(broker, BACKLOG[items])
    secret = create_token(directory) if token else ""
    with serving(program, "--url", url(directory), "serve", "--port", "PORT") as port:
        return load(port, kind, items, secret)


def create_token(directory: Path) -> str:
    """A token of a worker that is limited to the queue: its rights are checked at every call."""
    command = ["--url", url(directory), "-o", "json", "token", "create", "load", "--role", "consumer", "--queue", QUEUE]
    done = subprocess.run([sys.executable, "-m", "redrive", *command], check=True, capture_output=True, text=True)
    secret: str = json.loads(done.stdout)["token"]
    return secret


def baseline(kind: str, items: int, directory: Path) -> Measurement:
    with serving("benchmarks.http_baseline", "PORT", str(items)) as port:
        return load(port, kind, items)


def embedded(kind: str, items: int, directory: Path) -> Measurement:
    """The broker in the program itself, on the core that the server has, with as many callers as connections."""
    if setting := _on_core(SERVER_CORE):
        setting()
    with open_broker(directory) as broker:
        create_queue(broker)
        if kind == "lease_complete":
            fill(broker, BACKLOG[items])
    measured: Measurement = run_async(_embedded(kind, items, directory))
    return measured


async def _embedded(kind: str, items: int, directory: Path) -> Measurement:
    async with open_async_broker(directory) as broker:
        step = _put(broker, items) if kind == "put" else _lease_complete(broker, items)
        finished, seconds = await run_callers(step, EMBEDDED_CALLERS, SECONDS)
        return rate(finished, seconds, callers=EMBEDDED_CALLERS)


def _put(broker: Any, items: int) -> AsyncStep:
    values = [payload()] * items

    async def step() -> int:
        return len(await broker.put_many(QUEUE, values))

    return step


def _lease_complete(broker: Any, items: int) -> AsyncStep:
    import asyncio

    async def step() -> int:
        leases = await broker.lease(QUEUE, limit=items)
        await asyncio.gather(*[broker.complete(lease) for lease in leases])
        return len(leases)

    return step


CASES = [
    *(
        Case(f"http.{kind}.{items}", GROUP, f"{words}, {items} a request", partial(redrive, kind, items))
        for kind, words in WORDS.items()
        for items in (1, 100)
    ),
    *(
        Case(
            f"http.{kind}.1.token",
            GROUP,
            f"{words}, 1 a request, with a token",
            partial(redrive, kind, 1, token=True),
        )
        for kind, words in WORDS.items()
    ),
    *(
        Case(
            f"slow_path.{kind}.1{'.token' if token else ''}",
            GROUP,
            f"the same{' with a token' if token else ''}, by the ASGI application: {words}",
            partial(redrive, kind, 1, program="benchmarks.http_slow_path", token=token),
        )
        for kind, words in WORDS.items()
        for token in (False, True)
    ),
    *(
        Case(f"stack.{kind}.1", GROUP, f"the same stack, only parse and answer: {words}", partial(baseline, kind, 1))
        for kind, words in WORDS.items()
    ),
    *(
        Case(f"embedded.{kind}.100", GROUP, f"the embedded broker: {words}, 100 a call", partial(embedded, kind, 100))
        for kind, words in WORDS.items()
    ),
]
BARS = [
    *(
        Bar(
            f"produce, one item a request{words}, 64 connections: at least 65 % of the stack that only parses and "
            f"answers",
            f"http.put.1{token}",
            ("stack.put.1",),
            at_least=0.65,
            why="the thread that commits runs on the core of the event loop, and the stack alone has none (ADR 16)",
        )
        for token, words in TOKENS.items()
    ),
    # The ASGI application stands for the server of 3a0b94a, without a direct path: it is as fast as that (ADR 26).
    *(
        Bar(
            f"lease and complete, one item a request{words}: at least twice what the ASGI application reaches",
            f"http.lease_complete.1{token}",
            (f"slow_path.lease_complete.1{token}",),
            at_least=2.0,
            why="the loop costs 0.43 of the application, the thread that commits the same as before (ADR 26)",
        )
        for token, words in TOKENS.items()
    ),
    Bar(
        "lease and complete, one item a request, beside the stack that only parses and answers",
        "http.lease_complete.1",
        ("stack.lease_complete.1",),
    ),
    *(
        Bar(
            f"{words}, 100 items a request: at least 40 % of the embedded broker",
            f"http.{kind}.100",
            (f"embedded.{kind}.100",),
            at_least=0.4,
        )
        for kind, words in WORDS.items()
    ),
]
