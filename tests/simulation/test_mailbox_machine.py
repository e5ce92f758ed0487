"""A mailbox against naive rules: random sends, receives and ends of deliveries, while time passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.mailbox import Mailbox, Message, ReceiptHandleExpiredError
from redrive.testing import FakeClock

STORES = ["memory", "sqlite", "postgres", "redis"]
PATIENT = {"max_attempts": 0, "max_losses": 0}
SECONDS = st.integers(1, 30)


@dataclass
class Expected:
    """What the naive rules say of one message."""

    number: int
    visible_at: int
    deliveries: int = 0
    handle: str | None = None
    """Of the delivery that holds it."""


class MailboxMachine(RuleBasedStateMachine):
    """Every message is visible, invisible or gone, and which of them is known."""

    open_broker: Callable[[FakeClock], Broker]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.broker = type(self).open_broker(self.clock)
        name = f"box-{uuid4().hex}"
        self.mailbox: Mailbox[int, None] = Mailbox(self.broker, name, body=int, settings=PATIENT)
        self.messages: dict[str, Expected] = {}
        self.deliveries: list[Message[int, None]] = []
        self.handles: set[str] = set()
        self.sent = 0

    @property
    def now(self) -> int:
        return self.clock.now() // 1_000_000

    @rule(delay=st.integers(0, 5))
    def send(self, delay: int) -> None:
        id = self.mailbox.send(self.sent, delay=delay)
        assert id not in self.messages
        self.messages[id] = Expected(self.sent, self.now + delay)
        self.sent += 1

    @rule(most=st.integers(1, 10), visibility=SECONDS)
    def receive(self, most: int, visibility: int) -> None:
        visible = {id: each for id, each in self.messages.items() if each.visible_at <= self.now}
        for each in visible.values():
            each.handle = None  # whoever held it has lost it
        received = self.mailbox.receive(max_messages=most, visibility_timeout=visibility)
        assert len(received) == min(most, len(visible))
        for message in received:
            expected = visible.pop(message.id)  # none twice, none that is invisible
            assert (message.body, message.delivery_count) == (expected.number, expected.deliveries + 1)
            assert message.receipt_handle not in self.handles
            self.handles.add(message.receipt_handle)
            expected.deliveries, expected.handle = message.delivery_count, message.receipt_handle
            expected.visible_at = self.now + visibility
            self.deliveries.append(message)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), delay=st.integers(0, 30))
    def nack(self, data: Any, delay: int) -> None:
        message = data.draw(st.sampled_from(self.deliveries))
        if (expected := self._held(message, lambda: message.nack(visibility_timeout=delay))) is not None:
            expected.handle, expected.visible_at = None, self.now + delay

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), timeout=SECONDS)
    def extend(self, data: Any, timeout: int) -> None:
        message = data.draw(st.sampled_from(self.deliveries))
        if (expected := self._held(message, lambda: message.extend_visibility(timeout))) is not None:
            expected.visible_at = self.now + timeout

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        message = data.draw(st.sampled_from(self.deliveries))
        if self._held(message, message.acknowledge) is not None:
            del self.messages[message.id]

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def nothing_is_lost_or_made(self) -> None:
        if self.sent:
            assert self.mailbox.approximate_count() == len(self.messages)

    def teardown(self) -> None:
        try:
            self.clock.advance("1h")
            left: list[str] = []
            while received := self.mailbox.receive(max_messages=10) if self.sent else ():
                for message in received:
                    message.acknowledge()
                    left.append(message.id)
            assert sorted(left) == sorted(self.messages)
        finally:
            self.broker.close()

    def _held(self, message: Message[int, None], use: Callable[[], None]) -> Expected | None:
        """The message, if this delivery holds it, and the use succeeded; otherwise the use was refused."""
        expected = self.messages.get(message.id)
        if expected is not None and expected.handle == message.receipt_handle:
            use()
            return expected
        with pytest.raises(ReceiptHandleExpiredError):
            use()
        return None


@pytest.mark.parametrize("store", STORES)
def test_mailbox_does_what_naive_rules_say(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if store in ("postgres", "redis"):
        url: str = request.getfixturevalue(f"{store}_url")
    else:
        url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/mail.db"

    class Machine(MailboxMachine):
        """On this store."""

        open_broker = staticmethod(lambda clock: connect(url, clock=clock, maintenance=False))

    examples = 500 if THOROUGH else 25 if store in ("memory", "sqlite") else 8
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
