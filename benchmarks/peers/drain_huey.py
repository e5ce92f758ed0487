"""huey, SqliteHuey with fsync: its consumer, with threads or processes. In the environment of `huey.py`.

It takes a task out of the database before it runs: what is not there any more need not have been done.
"""

from pathlib import Path

from huey import SqliteHuey
from huey.consumer import Consumer

from benchmarks.peers.drain import PAYLOAD, URL, main, note_sync
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, record_connections

record_connections()
huey = SqliteHuey(filename=str(Path(URL) / "huey.db"), fsync=True, timeout=BUSY_TIMEOUT_SECONDS)


@huey.task()  # type: ignore[untyped-decorator]
def no_operation(value: object) -> None:
    """Returns None, so that huey writes no result."""
    note_sync()


def fill(count: int) -> None:
    for _ in range(count):
        no_operation(PAYLOAD)


def work(kind: str, workers: str) -> None:
    """Nothing is periodic."""
    Consumer(huey, workers=int(workers), worker_type=kind, periodic=False, initial_delay=0.01).run()


if __name__ == "__main__":
    main(fill, work)
