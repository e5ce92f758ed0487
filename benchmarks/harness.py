"""Cases run in interleaved rounds, medians and spreads over the rounds, ratios of figures of the same round."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load import Facts, Measurement
from benchmarks.machine import sync_microseconds

ROOT = Path(__file__).parent.parent
CASE_TIMEOUT_SECONDS = 900
NOT_EXPLAINED = "not explained yet"


class NotReady(Exception):
    """A case that cannot be measured yet. The report says so; it is not an error."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured once per round.

    `prepare` fills the directory once, before the first round; all rounds then share that directory, and with
    `shares` all cases of that name do: they must leave it as it is. Without it each round gets an empty one. A case
    that is not isolated starts a process of its own. One that takes long is measured `once`, in the first round.
    """

    key: str
    group: str
    title: str
    run: Callable[[Path], Measurement]
    prepare: Callable[[Path], None] | None = None
    isolated: bool = True
    shares: str = ""
    once: bool = False

    @property
    def folder(self) -> str:
        """The name of the directory that was prepared for it."""
        return self.shares or self.key


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about the ratio of one case's figure to the best of others', in the same run.

    Without a limit it promises nothing, and the ratio is only shown. Without others it is about the figure itself.
    """

    text: str
    case: str
    against: tuple[str, ...]
    figure: str = "rate"
    at_least: float | None = None
    at_most: float | None = None
    why: str = NOT_EXPLAINED
    """If it is missed: the reason, or what is known of it. The report shows it beside a miss."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Everything that `python -m benchmarks <name>` measures and judges."""

    name: str
    cases: Sequence[Case]
    bars: Sequence[Bar]
    durable: str = "Everything is durable: WAL, synchronous=FULL, read back on the connections in use."
    """What an acknowledgement means in it."""

    def case(self, key: str) -> Case:
        return next(case for case in self.cases if case.key == key)


@dataclass(slots=True)
class Series:
    """The measurements of one case, one per round, or the reason why there are none."""

    rounds: list[Measurement] = field(default_factory=list)
    missing: str = ""

    def samples(self, figure: str) -> list[float]:
        """One per round, or none at all: a case that failed in any round has no figure."""
        if self.missing:
            return []
        return [measurement.figures[figure] for measurement in self.rounds if figure in measurement.figures]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of one figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar after the run. `ratio` is None when one of its sides was not measured."""

    bar: Bar
    against: str = ""
    ratio: Spread | None = None

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not measured"
        if self.bar.at_least is None and self.bar.at_most is None:
            return "shown"
        enough = self.bar.at_least is None or self.ratio.median >= self.bar.at_least
        little = self.bar.at_most is None or self.ratio.median <= self.bar.at_most
        return "pass" if enough and little else "miss"


Results = dict[str, Series]


def run(suite: Suite, rounds: int, work: Path, say: Callable[[str], None]) -> Results:
    """Measures every case `rounds` times. Every other round goes backwards, so that a slow drift cancels out."""
    results: Results = {case.key: Series() for case in suite.cases}
    with _directory(work) as prepared:
        for case in suite.cases:
            if case.prepare is not None and not (prepared / case.folder).exists():
                _attempt(case, results[case.key], partial(_prepare, suite, case, prepared / case.folder), say)
        for number in range(rounds):
            for case in suite.cases if number % 2 == 0 else reversed(suite.cases):
                series = results[case.key]
                if not series.missing and not (case.once and number):
                    _attempt(case, series, partial(_measure, suite, case, work, prepared / case.folder), say)
            say(f"round {number + 1} of {rounds} done")
    return results


def judge(bar: Bar, results: Results) -> Verdict:
    """The median of the ratios of the same round, against whichever of the others has the best median."""
    samples = _samples(bar.case, bar.figure, results)
    if samples and not bar.against:
        return Verdict(bar, "", Spread.of(samples))
    others = {key: _samples(key, bar.figure, results) for key in bar.against}
    if not samples or not all(others.values()):
        return Verdict(bar)
    best = max(others, key=lambda key: statistics.median(others[key]))
    return Verdict(bar, best, Spread.of([ours / theirs for ours, theirs in zip(samples, others[best], strict=True)]))


def measure_in_this_process(case: Case, directory: Path, prepare: bool) -> None:
    """The child's side of an isolated case: one line of JSON on standard output."""
    try:
        if prepare:
            assert case.prepare is not None
            case.prepare(directory)
            answer: dict[str, object] = {"figures": {}, "facts": {}}
        else:
            measurement = case.run(directory)
            answer = {"figures": measurement.figures, "facts": measurement.facts}
    except NotReady as error:
        answer = {"missing": str(error)}
    print(json.dumps(answer))


def last_json_line(command: Sequence[str], **environment: str) -> dict[str, object]:
    """Runs a command from the repository's root and reads the last line it prints."""
    settings = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=CASE_TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-600:]}")
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _samples(key: str, figure: str, results: Results) -> list[float]:
    return results[key].samples(figure) if key in results else []


def _attempt(case: Case, series: Series, work: Callable[[], Measurement], say: Callable[[str], None]) -> None:
    started = time.perf_counter()
    try:
        measurement = work()
    except NotReady as error:
        series.missing = str(error)
        say(f"  {case.key:32} not measured: {error}")
    except (RuntimeError, subprocess.SubprocessError) as error:
        series.missing = f"failed: {str(error).strip().splitlines()[-1]}"
        say(f"  {case.key:32} FAILED: {error}")
    else:
        if measurement.figures:
            series.rounds.append(measurement)
        shown = (f"{name} {value:,.{1 if value >= 10 else 3}f}" for name, value in measurement.figures.items())
        figures = "  ".join(shown) or "prepared"
        say(f"  {case.key:32} {figures}  ({time.perf_counter() - started:.1f} s)")


def _prepare(suite: Suite, case: Case, directory: Path) -> Measurement:
    directory.mkdir()
    return _in_child(suite, case, directory, prepare=True)


def _measure(suite: Suite, case: Case, work: Path, prepared: Path) -> Measurement:
    sync, _ = sync_microseconds(work, probes=20)
    if case.prepare is not None:
        return replace(_in_child(suite, case, prepared), sync_microseconds=sync)
    with _directory(work) as directory:
        measurement = _in_child(suite, case, directory) if case.isolated else case.run(directory)
        return replace(measurement, sync_microseconds=sync)


def _in_child(suite: Suite, case: Case, directory: Path, prepare: bool = False) -> Measurement:
    """A fresh process per measurement: no case inherits the heap, the threads or the caches of another."""
    command = [sys.executable, "-m", "benchmarks", suite.name, "--case", case.key, "--directory", str(directory)]
    answer = last_json_line([*command, *(["--prepare"] if prepare else [])])
    if "missing" in answer:
        raise NotReady(str(answer["missing"]))
    figures, facts = answer["figures"], answer["facts"]
    assert isinstance(figures, dict) and isinstance(facts, dict)
    return Measurement(figures, facts)


@contextmanager
def _directory(work: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=work))
    directory.chmod(0o755)  # a server that root starts runs as another user
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def as_json(machine: Facts, rounds: int, suite: Suite, results: Results) -> dict[str, object]:
    """Everything that was measured, for machines."""
    cases: dict[str, object] = {}
    for case in suite.cases:
        series = results[case.key]
        names = series.rounds[0].figures if series.rounds and not series.missing else {}
        cases[case.key] = {
            "title": case.title,
            "missing": series.missing,
            "figures": {name: _spread_as_json(series.samples(name)) for name in names},
            "sync_microseconds": [measurement.sync_microseconds for measurement in series.rounds],
            "facts": series.rounds[-1].facts if series.rounds else {},
        }
    bars = []
    for bar in suite.bars:
        verdict = judge(bar, results)
        ratio = None if verdict.ratio is None else [verdict.ratio.median, verdict.ratio.low, verdict.ratio.high]
        limits = {"at_least": bar.at_least, "at_most": bar.at_most}
        why = {"why": bar.why} if verdict.word == "miss" else {}
        found = {"against": verdict.against, "ratio": ratio, **limits, "verdict": verdict.word}
        bars.append({"bar": bar.text, **found, **why})
    return {"suite": suite.name, "rounds": rounds, "machine": machine, "bars": bars, "cases": cases}


def _spread_as_json(samples: Sequence[float]) -> dict[str, object]:
    spread = Spread.of(samples)
    return {"median": spread.median, "min": spread.low, "max": spread.high, "samples": list(samples)}


def from_json(suite: Suite, document: Mapping[str, Any]) -> Results:
    """What `as_json` wrote, to judge bars that have changed since. Facts are those of the last round."""
    return {case.key: _series(document["cases"].get(case.key)) for case in suite.cases}


def _series(measured: Mapping[str, Any] | None) -> Series:
    if measured is None:
        return Series(missing="it is newer than this run")
    figures = {name: spread["samples"] for name, spread in measured["figures"].items()}
    rounds = [
        Measurement({name: samples[number] for name, samples in figures.items()}, measured["facts"], sync)
        for number, sync in enumerate(measured["sync_microseconds"])
    ]
    return Series(rounds, measured["missing"])
