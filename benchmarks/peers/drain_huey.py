"""huey: its consumer, with threads or processes. SqliteHuey with fsync in the environment of `huey.py`, or RedisHuey.

It takes a task out before it runs: what is not there any more need not have been done. Of a failure it keeps a result.
"""

from pathlib import Path

from huey import Huey, RedisHuey, SqliteHuey
from huey.consumer import Consumer

from benchmarks.peers.drain import FAILS, PAYLOAD, URL, main, note_sync
from benchmarks.peers.kept import MESSAGE, Kept
from benchmarks.peers.peer import BUSY_TIMEOUT_SECONDS, record_connections

IS_REDIS = URL.startswith("redis")


def _huey() -> Huey:
    if IS_REDIS:
        return RedisHuey("q", url=URL)
    record_connections()
    return SqliteHuey(filename=str(Path(URL) / "huey.db"), fsync=True, timeout=BUSY_TIMEOUT_SECONDS)


huey = _huey()


@huey.task()  # type: ignore[untyped-decorator]
def no_operation(value: object) -> None:
    """Returns None, so that huey writes no result."""
    if not IS_REDIS:
        note_sync()
    if FAILS:
        raise TimeoutError(MESSAGE)


def fill(count: int) -> None:
    for _ in range(count):
        no_operation(PAYLOAD)


def work(kind: str, workers: str) -> None:
    """Nothing is periodic."""
    Consumer(huey, workers=int(workers), worker_type=kind, periodic=False, initial_delay=0.01).run()


def kept() -> Kept:
    """Its results: it has no list of failures, and does not keep what was to be done."""
    results = list(huey.all_results().values())
    return Kept(len(results), repr(huey.serializer.deserialize(results[0])))


if __name__ == "__main__":
    main(fill, work, kept)
