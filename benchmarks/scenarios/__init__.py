"""One file per scenario; each has CASES, what is measured, and BARS, what is promised about it."""

from itertools import chain
from types import ModuleType

from benchmarks.harness import Suite
from benchmarks.scenarios import (
    bare,
    blocking,
    concurrent,
    death_cost,
    failure_cost,
    happy_path,
    lease_cost,
    looking,
    peers,
    raw,
    redriving,
)


def _suite(name: str, *scenarios: ModuleType) -> Suite:
    cases, bars = ([getattr(scenario, kind) for scenario in scenarios] for kind in ("CASES", "BARS"))
    return Suite(name, list(chain.from_iterable(cases)), list(chain.from_iterable(bars)))


SUITES = {
    suite.name: suite
    for suite in (
        _suite("sqlite", peers, bare, raw, blocking, concurrent, lease_cost, failure_cost, happy_path),
        _suite("looking", looking, redriving, death_cost),
    )
}
