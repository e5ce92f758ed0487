"""Tools for tests: a clock that a test moves, a broker in memory, tasks without a worker, doubles of mailboxes, and the
conformance suite of stores.

`redrive.testing.conformance` needs pytest and hypothesis; the rest needs neither.
"""

from redrive.testing.drain import Drained, drain, memory_broker
from redrive.testing.fake_clock import FakeClock
from redrive.testing.mailbox_doubles import CollectingMailbox, FakeMailbox, NullMailbox, SentMessage
from redrive.testing.run_tasks import put_due_ticks, run_tasks

__all__ = [
    "CollectingMailbox",
    "Drained",
    "FakeClock",
    "FakeMailbox",
    "NullMailbox",
    "SentMessage",
    "drain",
    "memory_broker",
    "put_due_ticks",
    "run_tasks",
]
