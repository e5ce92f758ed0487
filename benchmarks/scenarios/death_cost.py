"""What the words and the feed add to a death: 256 async callers, and one blocking caller."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement
from benchmarks.scenarios.failure_cost import ITEMS, measure

OFF = {"search": False, "feed": "none"}
LIMIT = 2.0


def measure_death(callers: int, settings: dict[str, Any], directory: Path) -> Measurement:
    return measure("dead", callers, directory, **settings)


CASES = [
    Case(
        f"death.{name}.callers{callers}",
        "The cost of a death",
        f"{words}, {'one blocking caller' if callers == 1 else f'{callers} async callers'}",
        partial(measure_death, callers, settings),
    )
    for callers in ITEMS
    for name, words, settings in (("on", "words and feed", {}), ("off", "neither", OFF))
]
BARS = [
    Bar(
        f"a death with words and feed, {'one blocking caller' if callers == 1 else f'{callers} async callers'}: "
        f"at most 2 × without",
        f"death.on.callers{callers}",
        (f"death.off.callers{callers}",),
        figure="microseconds",
        at_most=LIMIT,
    )
    for callers in ITEMS
]
