"""PostgreSQL: draining tasks that do nothing, ours beside the peers, each on a server with the same settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import peer_drain, worker
from benchmarks.drain import Left
from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.peer_drain import Peer, Way, work
from benchmarks.postgres import require_durable, server

GROUP = "PostgreSQL: drain of tasks that do nothing"
ITEMS = 100_000
JUDGED = "threads.x2"
"""Of our ways, the one that the bars are about, on every store: two workers, functions, all else by default."""

PEERS = {
    "pgqueuer": Peer(
        "pgqueuer, batches of 200",
        "drain_pgqueuer",
        "postgres_pgqueuer",
        "pgqueuer",
        60_000,
        {
            "x1": Way("1 process", work("drain_pgqueuer")),
            "x2": Way("2 processes", work("drain_pgqueuer"), processes=2),
        },
        "SELECT count(*) FROM pgqueuer",
    ),
    "procrastinate": Peer(
        "procrastinate",
        "drain_procrastinate",
        "drain_procrastinate",
        "procrastinate",
        3_000,
        {
            "x1": Way("1 process", work("drain_procrastinate", "5")),
            "x2": Way("2 processes", work("drain_procrastinate", "5"), processes=2),
        },
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    ),
    "saq": Peer(
        "saq",
        "drain_saq_postgres",
        "drain_saq_postgres",
        "saq",
        3_000,
        {
            "x1": Way("1 process", work("drain_saq_postgres", "10")),
            "x2": Way("2 processes", work("drain_saq_postgres", "10"), processes=2),
        },
        "SELECT count(*) FROM saq_jobs WHERE status IN ('new', 'queued', 'active')",
    ),
}
LEFT = """
    SELECT (SELECT count(*) FROM redrive.redrive_ready) + (SELECT count(*) FROM redrive.redrive_scheduled)
        + (SELECT count(*) FROM redrive.redrive_lease)"""


def measure_peer(peer: Peer, way: Way, directory: Path) -> Measurement:
    with server(directory) as url, counter(url, peer.left) as left:
        measured = peer_drain.drain(peer, way, url, left, directory)
        require_durable(url)
        return measured


def measure(way: worker.Way, directory: Path) -> Measurement:
    with server(directory) as url, counter(url, LEFT) as left:
        measured = worker.drain(way, ITEMS, url, left, directory)
        require_durable(url)
        return measured


@contextmanager
def counter(url: str, statement: str) -> Iterator[Left]:
    """Asks the database by a connection of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:

        def left() -> int:
            row = connection.execute(statement).fetchone()
            assert row is not None
            return int(row[0])

        yield left


def _keys(*names: str) -> tuple[str, ...]:
    return tuple(f"postgres.{name}.{way}" for name in names for way in PEERS[name].ways)


CASES = [
    Case(f"postgres.redrive.{name}", GROUP, f"Redrive: {way.words}", partial(measure, way))
    for name, way in worker.WAYS.items()
] + [
    Case(f"postgres.{key}.{name}", GROUP, f"{peer.name}: {way.words}", partial(measure_peer, peer, way))
    for key, peer in PEERS.items()
    for name, way in peer.ways.items()
]
BARS = [
    Bar(
        "PostgreSQL: drain at least 1.5 × pgqueuer, with 1 or 2 processes",
        f"postgres.redrive.{JUDGED}",
        _keys("pgqueuer"),
        at_least=1.5,
    ),
    *(
        Bar(f"… {way.words}", f"postgres.redrive.{name}", _keys("pgqueuer"))
        for name, way in worker.WAYS.items()
        if name != JUDGED
    ),
    Bar(
        "PostgreSQL: drain at least 20 × the faster of procrastinate and saq",
        f"postgres.redrive.{JUDGED}",
        _keys("procrastinate", "saq"),
        at_least=20.0,
    ),
]
