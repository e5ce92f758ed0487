"""One file per scenario; each has CASES, what is measured, and BARS, what is promised about it."""

from itertools import chain

from benchmarks.harness import Suite
from benchmarks.scenarios import bare, blocking, concurrent, failure_cost, happy_path, lease_cost, peers, raw

_SQLITE = (peers, bare, raw, blocking, concurrent, lease_cost, failure_cost, happy_path)

SUITES = {
    "sqlite": Suite(
        "sqlite",
        cases=list(chain.from_iterable(scenario.CASES for scenario in _SQLITE)),
        bars=list(chain.from_iterable(scenario.BARS for scenario in _SQLITE)),
    ),
}
