"""A peer's drain: its own worker in its own environment, on a store that is set as ours is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.drain import Left, run_once, watch, workers
from benchmarks.harness import ROOT, NotReady, last_json_line
from benchmarks.load import Facts, Measurement, rate
from benchmarks.peers.environment import interpreter
from benchmarks.peers.kept import Kept

PEERS = ROOT / "benchmarks" / "peers"


@dataclass(frozen=True, slots=True)
class Way:
    """One setting of a peer's worker: so many processes of one command, which follows the name of its Python."""

    words: str
    arguments: tuple[str, ...]
    processes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    fails: bool = False
    """Whether each job fails: then the failures are read back after the run."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A script that fills, the one whose header pins what it needs, and how to tell what is not finished yet."""

    name: str
    script: str
    pinned_by: str
    distribution: str
    items: int
    ways: Mapping[str, Way]
    left: Any
    """SQL on a relational store; of a connection to Redis, a function."""
    listed: str = ""
    """What it has to list failed jobs, in words."""
    again: str = ""
    """What it has to run a failed job once more, in words."""


def work(script: str, *settings: str) -> tuple[str, ...]:
    """The arguments that start a worker of a peer by its script."""
    return ("-m", f"benchmarks.peers.{script}", "work", *settings)


def drain(peer: Peer, way: Way, url: str, left: Left, directory: Path, **facts: str | int | float) -> Measurement:
    """Fills, starts its workers, and watches the store until everything is finished. Failures must all be kept."""
    try:
        python = interpreter(PEERS / f"{peer.pinned_by}.py", ROOT / ".bench" / "peers")
    except OSError as error:
        raise NotReady(f"no environment for {peer.name}: {error}") from error
    environment = {"BENCHMARK_URL": url, **way.environment, "BENCHMARK_END": "fail" if way.fails else "complete"}
    script = [str(python), "-m", f"benchmarks.peers.{peer.script}"]
    run_once([*script, "fill", str(peer.items)], environment)
    filled = left()
    if filled != peer.items:
        raise RuntimeError(f"{filled} of {peer.items} jobs are there")
    commands = [
        [str(python), *(part.format(number=number) for part in way.arguments)] for number in range(way.processes)
    ]
    with workers(commands, directory, environment) as running:
        items, seconds = watch(left, peer.items, running)
    if way.fails:
        kept = Kept(**last_json_line([*script, "kept"], **environment))  # type: ignore[arg-type]
        facts |= kept_facts(kept, peer.items, peer.listed, peer.again)
    return rate(items, seconds, version=_version(python, peer.distribution), backlog=peer.items, **facts)


def kept_facts(kept: Kept, failures: int, listed: str, again: str) -> Facts:
    """What is kept of each failure, if all of them are, and what runs it once more, if that was seen to work."""
    if kept.count != failures:
        raise RuntimeError(f"{kept.count} of {failures} failures are kept")
    if kept.is_waiting != bool(again):
        raise RuntimeError(f"asked to run once more by {again or 'nothing'}: waiting {kept.is_waiting}")
    return {"keeps": ", ".join(kept.parts), "listed": listed or "–", "again": again or "–"}


def _version(python: Path, distribution: str) -> str:
    """What is installed in its environment."""
    (home,) = (python.parent.parent / "lib").glob("python*/site-packages")
    found = next(iter(distributions(name=distribution, path=[str(home)])))
    return found.version
