"""Jobs that fail, ours beside those of the peers that keep their failures, and each peer beside itself completing.

A job raises, and is not retried. It counts when its failure is kept. Afterwards all failures are counted, and one
of them is read back, and run once more by what the library has for that. A peer has its own worker, with the settings
of its drain, on two processes, as ours are two workers. All write the log that they write by default, to a file.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.harness import NOT_EXPLAINED, Bar, Case
from benchmarks.load import Measurement
from benchmarks.peer_drain import Peer
from benchmarks.scenarios import worker_failures, worker_postgres, worker_redis, worker_sqlite

GROUP = "{store}: failures that are kept, ours beside peers"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
AT_LEAST = {"sqlite": 4.0, "postgres": 1.0, "redis": 1.0}
"""Of our deaths, beside the failures of the fastest peer on that store."""
WHY = {
    "postgres": "pgqueuer gathers the ends of 200 jobs, writes two rows for each, and no log unless it is asked to",
    "redis": "two workers reach less than one (`redis.die`); why is not known yet",
}
OURS = worker_failures.ENDS["die"]._replace(words="Redrive: deaths, 2 workers of 8 threads", workers=2)

_HUEY = replace(worker_sqlite.PEERS["huey"], items=3_000)
_CELERY = replace(worker_redis.PEERS["celery"], name="celery, acks_late, errors in a result backend", items=2_000)
_RQ = replace(worker_redis.PEERS["rq"], listed="`FailedJobRegistry`", again="`rq requeue --all`")
_SAQ = {"name": "saq, ttl=0", "listed": "`Queue.iter_jobs`", "again": "`Job.retry`, or its web page"}
PEERS = {
    "sqlite.huey": ("processes2", _HUEY),
    "postgres.pgqueuer": (
        "x2",
        replace(
            worker_postgres.PEERS["pgqueuer"],
            name='pgqueuer, batches of 200, on_failure="hold"',
            items=20_000,
            left="SELECT count(*) FROM pgqueuer WHERE status <> 'failed'",
            listed="`pgq failed`",
            again="`pgq requeue ID …`",
        ),
    ),
    "postgres.procrastinate": (
        "x2",
        replace(
            worker_postgres.PEERS["procrastinate"],
            items=2_000,
            listed="`procrastinate shell`: `list_jobs`",
            again="there, `retry ID`",
        ),
    ),
    "postgres.saq": ("x2", replace(worker_postgres.PEERS["saq"], items=2_000, **_SAQ)),
    "redis.dramatiq": (
        "p2t8",
        replace(worker_redis.PEERS["dramatiq"], name="dramatiq, dead letters of 7 days", items=5_000),
    ),
    "redis.saq": ("x2", replace(worker_redis.PEERS["saq"], items=4_000, **_SAQ)),
    "redis.huey": (
        "processes2",
        replace(_HUEY, pinned_by="redis_huey", left=lambda client: client.llen("huey.redis.q")),
    ),
    "redis.celery": ("solo2", _CELERY),
    "redis.rq": ("x2", _RQ),
}
"""On two processes; of huey, pgqueuer and celery that was the fastest of their settings where jobs fail, in one try."""
KEPT = {
    "sqlite.huey": ("huey.db", f"SELECT {_HUEY.items} - count(*) FROM kv"),
    "redis.huey": lambda client: _HUEY.items - client.hlen("huey.results.q"),
    "redis.celery": lambda client: _CELERY.items - client.info("keyspace").get("db1", {}).get("keys", 0),
    "redis.rq": lambda client: _RQ.items - client.zcard("rq:failed:q"),
}
"""What is left where jobs fail, of a peer that has a job in no place for a moment: those whose failure is not there."""


def measure(key: str, fails: bool, directory: Path) -> Measurement:
    way, peer = PEERS[key]
    if fails and key in KEPT:
        peer = replace(peer, left=KEPT[key])
    how = replace(peer.ways[way], fails=fails)
    match key.split(".")[0]:
        case "sqlite":
            return worker_sqlite.measure_peer(peer, how, directory)
        case "postgres":
            return worker_postgres.measure_peer(peer, how, directory)
        case _:
            return worker_redis.measure_peer(peer, how, "always", directory)


def _of(store: str) -> dict[str, Peer]:
    return {key: peer for key, (_, peer) in PEERS.items() if key.startswith(f"{store}.")}


def _cases(store: str, words: str) -> list[Case]:
    group = GROUP.format(store=words)
    ours = Case(f"{store}.redrive.fail", group, OURS.words, partial(worker_failures.measure, store, OURS))
    return [
        ours,
        *(
            Case(f"{key}.{end}", group, f"{peer.name}: {words}", partial(measure, key, end == "fail"))
            for key, peer in _of(store).items()
            for end, words in (("fail", "failures"), ("complete", "completions"))
        ),
    ]


def _bars(store: str, words: str) -> list[Bar]:
    names = ", ".join(key.split(".")[1] for key in _of(store))
    return [
        Bar(
            f"{words}: deaths at least {AT_LEAST[store]:g} × the failures that the fastest of {names} keeps",
            f"{store}.redrive.fail",
            tuple(f"{key}.fail" for key in _of(store)),
            at_least=AT_LEAST[store],
            why=WHY.get(store, NOT_EXPLAINED),
        ),
        Bar(f"{words}: … with 1 worker", f"{store}.die", tuple(f"{key}.fail" for key in _of(store))),
        *(
            Bar(f"… {peer.name}: failures of completions", f"{key}.fail", (f"{key}.complete",))
            for key, peer in _of(store).items()
        ),
    ]


CASES = [case for store, words in STORES.items() for case in _cases(store, words)]
BARS = [bar for store, words in STORES.items() for bar in _bars(store, words)]
