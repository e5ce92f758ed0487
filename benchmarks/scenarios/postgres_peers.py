"""pgqueuer, in an environment of its own, on a server with the same settings."""

from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, Bar, Case, NotReady, last_json_line
from benchmarks.load import Measurement
from benchmarks.peers.environment import interpreter
from benchmarks.postgres import server

SCRIPT = ROOT / "benchmarks" / "peers" / "postgres_pgqueuer.py"
SCENARIOS = {"one": "enqueue one by one", "bulk": "enqueue 1,000 at a time"}
BULK = "pgqueuer.bulk"


def measure(scenario: str, directory: Path) -> Measurement:
    try:
        python = interpreter(SCRIPT, ROOT / ".bench" / "peers")
    except OSError as error:
        raise NotReady(f"no environment for pgqueuer: {error}") from error
    with server(directory) as url:
        answer = last_json_line([str(python), "-m", "benchmarks.peers.postgres_pgqueuer", scenario, url])
    facts = {name: value for name, value in answer.items() if name != "rate" and isinstance(value, str | int | float)}
    return Measurement({"rate": float(str(answer["rate"]))}, facts)


CASES = [
    Case(f"pgqueuer.{name}", "Peers", f"pgqueuer: {words}", partial(measure, name), isolated=False)
    for name, words in SCENARIOS.items()
]
BARS: list[Bar] = []
