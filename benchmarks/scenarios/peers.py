"""The three peers, with 1 and with 32 threads, each in an environment of its own."""

from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, Bar, Case, NotReady, last_json_line
from benchmarks.load import Measurement
from benchmarks.peers.environment import interpreter

PEERS = {
    "litequeue": "litequeue",
    "persist_queue": "persist-queue, SQLiteAckQueue",
    "huey": "huey, SqliteHuey (takes the job out before it runs)",
}
SCENARIOS = {"put": "put", "cycle": "put, get, ack"}
THREADS = (1, 32)
FULL = 2


def measure(peer: str, scenario: str, threads: int, directory: Path) -> Measurement:
    script = ROOT / "benchmarks" / "peers" / f"{peer}.py"
    try:
        python = interpreter(script, ROOT / ".bench" / "peers")
    except OSError as error:
        raise NotReady(f"no environment for {peer}: {error}") from error
    answer = last_json_line([str(python), "-m", f"benchmarks.peers.{peer}", scenario, str(threads), str(directory)])
    if answer["synchronous"] != FULL:
        raise RuntimeError(f"{peer} ran with synchronous={answer['synchronous']}, not FULL")
    facts = {name: value for name, value in answer.items() if name != "rate" and isinstance(value, str | int | float)}
    return Measurement({"rate": float(str(answer["rate"]))}, facts)


def keys(scenario: str) -> tuple[str, ...]:
    """The cases among which the best peer is chosen."""
    return tuple(f"{peer}.{scenario}.threads{threads}" for peer in PEERS for threads in THREADS)


CASES = [
    Case(
        f"{peer}.{scenario}.threads{threads}",
        "Peers",
        f"{name}: {words}, {threads} thread{'s' if threads > 1 else ''}",
        partial(measure, peer, scenario, threads),
        isolated=False,
    )
    for scenario, words in SCENARIOS.items()
    for peer, name in PEERS.items()
    for threads in THREADS
]
BARS: list[Bar] = []
