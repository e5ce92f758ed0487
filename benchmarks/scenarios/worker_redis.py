"""Redis: draining tasks that do nothing, ours beside the peers, with the log synced always and every second."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peer_drain, worker
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.peer_drain import Peer, Way, work
from benchmarks.redis import SYNCS, server

GROUP = "Redis: drain of tasks that do nothing"
ITEMS = 50_000
JUDGED = "threads.x2"
"""Of our ways, the one that the bars are about, on every store: two workers, functions, all else by default."""
ALL = "{redrive:default}:all:q"
"""Every item of our queue; what is completed is there no longer."""
SHOWN = ("taskiq.list",)
"""Ways that are no peer of ours: they take the job out before it runs, and a crash loses it."""


def _taskiq_left(client: Any) -> int:
    """What is in the list; of the stream, what no worker read, and what was read and not acknowledged."""
    if client.type("q") != b"stream":
        return int(client.llen("q"))
    groups = client.xinfo_groups("q")
    done = sum(int(group["entries-read"] or 0) - int(group["pending"]) for group in groups)
    return int(client.xlen("q")) - done


_QUIET = ("-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
_CELERY = ("-m", "celery", "-A", "benchmarks.peers.drain_celery", "worker", "-n", "w{number}@%h", *_QUIET)
_TASKIQ = ("-m", "taskiq", "worker", "benchmarks.peers.drain_taskiq:broker", "-w", "2", "--log-level", "ERROR")
_DRAMATIQ = ("-m", "dramatiq", "benchmarks.peers.drain_dramatiq:broker")

PEERS = {
    "dramatiq": Peer(
        "dramatiq",
        "drain_dramatiq",
        "redis_dramatiq",
        "dramatiq",
        8_000,
        {"p2t8": Way("2 processes of 8 threads", (*_DRAMATIQ, "-p", "2", "-t", "8"))},
        lambda client: client.hlen("dramatiq:q.msgs"),
    ),
    "taskiq": Peer(
        "taskiq",
        "drain_taskiq",
        "redis_taskiq",
        "taskiq",
        8_000,
        {
            "stream10": Way("stream, 2 processes, 10 tasks at once", (*_TASKIQ, "--max-async-tasks", "10")),
            "stream100": Way("stream, 2 processes, 100 tasks at once", (*_TASKIQ, "--max-async-tasks", "100")),
            "list": Way(
                "list, 2 processes, 10 tasks at once (takes the job out before it runs)",
                (*_TASKIQ, "--max-async-tasks", "10"),
                environment={"BENCHMARK_BROKER": "list"},
            ),
        },
        _taskiq_left,
    ),
    "saq": Peer(
        "saq",
        "drain_saq_redis",
        "redis_saq",
        "saq",
        6_000,
        {"x2": Way("2 processes", work("drain_saq_redis", "10"), processes=2)},
        lambda client: client.zcard("saq:q:incomplete"),
    ),
    "rq": Peer(
        "rq, SimpleWorker",
        "drain_rq",
        "redis_rq",
        "rq",
        1_000,
        {"x2": Way("2 processes", work("drain_rq"), processes=2)},
        lambda client: client.llen("rq:queue:q") + client.zcard("rq:wip:q"),
    ),
    "arq": Peer(
        "arq",
        "drain_arq",
        "redis_arq",
        "arq",
        3_200,
        {
            "x1": Way("1 process", work("drain_arq", "10")),
            "x2": Way("2 processes", work("drain_arq", "10"), processes=2),
        },
        lambda client: client.zcard("arq:queue"),
    ),
    "celery": Peer(
        "celery, acks_late",
        "drain_celery",
        "redis_celery",
        "celery",
        4_000,
        {
            "solo2": Way("2 processes, solo", (*_CELERY, "-P", "solo"), processes=2),
            "prefork2": Way("prefork 2", (*_CELERY, "-c", "2")),
        },
        lambda client: client.llen("q") + client.hlen("unacked"),
    ),
}


def measure_peer(peer: Peer, way: Way, sync: str, directory: Path) -> Measurement:
    with server(directory, sync) as running, running.client() as client:
        return peer_drain.drain(peer, way, running.url, lambda: int(peer.left(client)), directory, appendfsync=sync)


def measure(way: worker.Way, sync: str, directory: Path) -> Measurement:
    with server(directory, sync) as running, running.client() as client:
        return worker.drain(
            way, ITEMS, running.url, lambda: int(client.zcard(ALL)), directory, SYNCS[sync], appendfsync=sync
        )


CASES = [
    Case(
        f"redis.redrive.{name}.{sync}",
        GROUP,
        f"Redrive: {way.words}, appendfsync {sync}",
        partial(measure, way, sync),
    )
    for sync in SYNCS
    for name, way in worker.WAYS.items()
] + [
    Case(
        f"redis.{key}.{name}.{sync}",
        GROUP,
        f"{peer.name}: {way.words}, appendfsync {sync}",
        partial(measure_peer, peer, way, sync),
    )
    for sync in SYNCS
    for key, peer in PEERS.items()
    for name, way in peer.ways.items()
]


def _bars(sync: str) -> list[Bar]:
    peers = tuple(
        f"redis.{key}.{name}.{sync}"
        for key, peer in PEERS.items()
        for name in peer.ways
        if f"{key}.{name}" not in SHOWN
    )
    return [
        Bar(
            f"Redis: drain at least 4 × the fastest of {', '.join(PEERS)} (appendfsync {sync})",
            f"redis.redrive.{JUDGED}.{sync}",
            peers,
            at_least=4.0,
        ),
        *(
            Bar(f"… {way.words} (appendfsync {sync})", f"redis.redrive.{name}.{sync}", peers)
            for name, way in worker.WAYS.items()
            if name != JUDGED
        ),
    ]


BARS = [bar for sync in SYNCS for bar in _bars(sync)]
