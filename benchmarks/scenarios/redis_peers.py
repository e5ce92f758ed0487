"""Peers on Redis: each enqueues as fast as it can, in an environment of its own, on a server set as ours is."""

from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, Bar, Case, NotReady, last_json_line
from benchmarks.load import Measurement
from benchmarks.peers.environment import interpreter
from benchmarks.redis import SYNCS, server

PEERS = {
    "dramatiq": {"threads1": "one thread", "threads8": "8 threads"},
    "taskiq": {"list": "list, 256 callers", "stream": "stream, 256 callers"},
    "saq": {"callers256": "256 callers"},
    "rq": {"batch1": "one by one", "batch100": "enqueue_many of 100", "batch1000": "enqueue_many of 1,000"},
    "arq": {"callers256": "256 callers"},
    "celery": {"threads1": "one thread", "threads8": "8 threads"},
}
BULK = ("rq.batch100", "rq.batch1000")
"""Ways that put many with one call."""


def measure(peer: str, way: str, sync: str, directory: Path) -> Measurement:
    script = ROOT / "benchmarks" / "peers" / f"redis_{peer}.py"
    try:
        python = interpreter(script, ROOT / ".bench" / "peers")
    except OSError as error:
        raise NotReady(f"no environment for {peer}: {error}") from error
    with server(directory, sync) as running:
        answer = last_json_line([str(python), "-m", f"benchmarks.peers.redis_{peer}", way, running.url])
    facts = {name: value for name, value in answer.items() if isinstance(value, str | int | float)}
    return Measurement({"rate": float(str(answer["items"])) / float(str(answer["seconds"]))}, facts)


def keys(sync: str, *, bulk: bool) -> tuple[str, ...]:
    """The cases among which the best peer is chosen."""
    return tuple(
        f"{peer}.put.{way}.{sync}"
        for peer, ways in PEERS.items()
        for way in ways
        if bulk or f"{peer}.{way}" not in BULK
    )


CASES = [
    Case(
        f"{peer}.put.{way}.{sync}",
        "Peers",
        f"{peer}: enqueue, {words}, appendfsync {sync}",
        partial(measure, peer, way, sync),
        isolated=False,
    )
    for sync in SYNCS
    for peer, ways in PEERS.items()
    for way, words in ways.items()
]
BARS: list[Bar] = []
