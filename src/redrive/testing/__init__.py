"""For tests: a clock that stands still, a broker in memory, and the suite that every store passes.

`redrive.testing.conformance` needs pytest and hypothesis; the rest needs neither.
"""

from redrive.testing.clock import FakeClock
from redrive.testing.drain import Drained, drain
from redrive.testing.memory import memory_broker

__all__ = ["Drained", "FakeClock", "drain", "memory_broker"]
