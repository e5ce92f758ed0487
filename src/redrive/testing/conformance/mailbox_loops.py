"""Loops on mailboxes: replies, retries, dead-letter policies and consumers of dead letters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Broker
from redrive.errors import InvalidInput
from redrive.mailbox import (
    DeadLetter,
    DLQPolicy,
    DLQRoutes,
    InvalidParameterError,
    Mailbox,
    MailboxClosedError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Message,
    VisibilityExpansionRequired,
)
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

Ask = MainLoopRequest[str]
Answer = MainLoopResult[int]


class ProviderError(Exception):
    """An error of another library."""


class QuotaError(ProviderError):
    """A subclass of that error."""


@dataclass(frozen=True)
class BrokenPolicy(DLQPolicy[Ask, Answer]):
    """A policy that raises."""

    def should_dead_letter(self, message: Message[Ask, Any], error: Exception) -> bool:
        raise RuntimeError("no idea")


class Length(MainLoop[str, int]):
    """A loop as a subclass."""

    def process(self, request: str) -> int:
        return len(request)


class Boxes:
    """The mailboxes of a loop, and loops on them."""

    def __init__(self, broker: Broker, clock: FakeClock) -> None:
        self.broker, self.clock = broker, clock
        self.requests: Mailbox[Ask, Answer] = Mailbox(broker, "requests", body=Ask, reply=Answer)
        self.replies: Mailbox[Answer, None] = Mailbox(broker, "replies", body=Answer)
        self.dead: Mailbox[DeadLetter[Ask], None] = Mailbox(broker, "requests-dlq", body=DeadLetter[Ask])
        self.policy: DLQPolicy[Ask, Answer] = DLQPolicy(self.dead, max_delivery_count=3)

    def send(self, text: str = "hello", **options: Any) -> Ask:
        """Send a request whose reply goes to `replies`."""
        request = MainLoopRequest(text, **options)
        self.requests.send(request, reply_to=self.replies)
        return request

    def run(self, handler: Any, times: int = 1, dlq: DLQPolicy[Ask, Answer] | None = None, **options: Any) -> None:
        """Let a loop receive `times` times, and advance the clock past the back-off after each."""
        loop: MainLoop[str, int] = MainLoop(requests=self.requests, handler=handler, dlq=dlq, **options)
        for _ in range(times):
            loop.run(max_iterations=1, wait_time_seconds=0)
            self.clock.advance("15m")

    def answers(self) -> list[Answer]:
        """Receive and acknowledge all replies, and return them."""
        received = self.replies.receive(max_messages=10)
        for message in received:
            message.acknowledge()
        return [message.body for message in received]

    def letter(self) -> DeadLetter[Ask]:
        """Return the only dead letter, and release it."""
        (message,) = self.dead.receive(max_messages=10)
        message.nack()
        return message.body


def failing(error: Exception) -> Any:
    """Return a handler that raises this error."""

    def handler(request: str) -> int:
        raise error

    return handler


class MainLoopConformance(Suite):
    """Main loops on requests. Loops do not wait: the clock is moved between two receives."""

    @pytest.fixture
    def boxes(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Return the mailboxes."""
        return Boxes(broker, clock)

    def test_request_is_answered_and_acknowledged(self, boxes: Boxes) -> None:
        request = boxes.send("four")
        boxes.run(len, dlq=boxes.policy)
        assert boxes.answers() == [MainLoopResult(request.request_id, 4)]
        assert boxes.requests.approximate_count() == 0

    def test_handler_may_be_a_subclass_an_adapter_or_a_coroutine(self, boxes: Boxes) -> None:
        class Evaluator:
            def evaluate(self, request: str) -> int:
                return len(request) * 2

        async def awaited(request: str) -> int:
            return len(request) * 3

        for _ in range(3):
            boxes.send("ab")
        Length(requests=boxes.requests).run(max_iterations=1, wait_time_seconds=0)
        MainLoop(requests=boxes.requests, adapter=Evaluator()).run(max_iterations=1, wait_time_seconds=0)
        boxes.run(awaited)
        assert [answer.output for answer in boxes.answers()] == [2, 4, 6]
        with pytest.raises(InvalidInput, match="process"):
            MainLoop(requests=boxes.requests)

    def test_request_waits_for_the_result_of_a_loop(self, boxes: Boxes) -> None:
        caller = Background(lambda: boxes.requests.request(MainLoopRequest("five!"), "10m"))
        boxes.clock.until_waiting()
        MainLoop(requests=boxes.requests, handler=len).run(max_iterations=1, wait_time_seconds=0)
        assert caller.result().output == 5

    def test_failure_is_retried_after_a_back_off_and_not_answered(self, boxes: Boxes) -> None:
        boxes.send()
        loop: MainLoop[str, int] = MainLoop(
            requests=boxes.requests, handler=failing(ValueError("no")), dlq=boxes.policy
        )
        for pause in (60, 120):
            loop.run(max_iterations=1, wait_time_seconds=0)
            boxes.clock.advance(pause - 1)
            assert boxes.requests.receive() == []
            boxes.clock.advance(1)
        assert boxes.answers() == []
        boxes.run(len, dlq=boxes.policy)
        assert [answer.success for answer in boxes.answers()] == [True]

    def test_message_that_fails_too_often_is_one_dead_letter_and_one_error_reply(self, boxes: Boxes) -> None:
        sent_at = datetime.fromtimestamp(boxes.clock.now() / 1_000_000, UTC)
        boxes.clock.advance("1m")
        request = boxes.send("poison")
        boxes.clock.advance("1m")
        boxes.run(failing(ValueError("bad input")), times=3, dlq=boxes.policy)
        (answer,) = boxes.answers()
        assert (answer.request_id, answer.success) == (request.request_id, False)
        assert answer.error == "Dead-lettered after 3 attempts: bad input"
        letter = boxes.letter()
        assert letter.body == request
        assert (letter.source_mailbox, letter.delivery_count, letter.reason) == ("requests", 3, "policy")
        assert (letter.last_error, letter.last_error_type) == ("bad input", "builtins.ValueError")
        assert (letter.request_id, letter.reply_to) == (request.request_id, "replies")
        assert letter.first_received_at == sent_at + timedelta(minutes=2)
        assert letter.dead_lettered_at == sent_at + timedelta(minutes=32)
        assert [failure.text for failure in letter.failures] == ["bad input"] * 3
        assert all("ValueError" in (failure.traceback or "") for failure in letter.failures)
        assert letter.fingerprint == boxes.broker.groups()[0].fingerprint
        assert boxes.requests.approximate_count() == 0

    @pytest.mark.parametrize(
        ("policy", "error", "deliveries"),
        [
            ({"include_errors": frozenset({ValueError})}, ValueError("x"), 1),
            ({"include_errors": frozenset({ProviderError})}, QuotaError("x"), 1),
            ({"include_errors": frozenset({"ProviderError"})}, QuotaError("x"), 1),
            ({"include_errors": frozenset({ValueError})}, KeyError("x"), 3),
            ({"exclude_errors": frozenset({ProviderError})}, QuotaError("x"), None),
            (
                {"include_errors": frozenset({QuotaError}), "exclude_errors": frozenset({ProviderError})},
                QuotaError("x"),
                None,
            ),
        ],
    )
    def test_exclude_wins_over_include_and_that_over_the_count(
        self, boxes: Boxes, policy: dict[str, Any], error: Exception, deliveries: int | None
    ) -> None:
        boxes.send()
        boxes.run(failing(error), times=5, dlq=replace(boxes.policy, **policy))
        assert boxes.dead.approximate_count() == (deliveries is not None)
        if deliveries is not None:
            assert boxes.letter().delivery_count == deliveries

    def test_policy_that_raises_leaves_it_to_the_count(self, boxes: Boxes) -> None:
        boxes.send()
        boxes.run(failing(ValueError("x")), times=2, dlq=BrokenPolicy(boxes.dead, 3))
        assert (boxes.dead.approximate_count(), boxes.requests.approximate_count()) == (0, 1)
        boxes.run(failing(ValueError("x")), dlq=BrokenPolicy(boxes.dead, 3))
        assert boxes.letter().delivery_count == 3

    def test_output_of_another_type_is_a_failure(self, boxes: Boxes) -> None:
        boxes.send()
        boxes.run(lambda text: "three", times=3, dlq=boxes.policy)
        assert boxes.letter().last_error_type == "redrive.mailbox.mailbox_errors.SerializationError"
        assert [answer.success for answer in boxes.answers()] == [False]

    @pytest.mark.parametrize("retry", [lambda deliveries: 1 / 0, lambda deliveries: "soon", lambda deliveries: -5])
    def test_back_off_that_cannot_be_used_is_replaced_by_the_default(self, boxes: Boxes, retry: Any) -> None:
        boxes.send()
        boxes.run(failing(ValueError("x")), dlq=boxes.policy, config=MainLoopConfig(retry=retry))
        (message,) = boxes.requests.receive()
        assert message.failures == 1

    def test_back_off_of_more_than_a_year_is_cut_there(self, boxes: Boxes) -> None:
        boxes.send()
        boxes.run(failing(ValueError("x")), config=MainLoopConfig(retry=lambda deliveries: 1e300))
        boxes.clock.advance("364d")
        assert boxes.requests.receive() == []
        boxes.clock.advance("1d")
        assert len(boxes.requests.receive()) == 1

    def test_route_that_raises_leaves_it_to_the_mailbox_of_the_policy(self, boxes: Boxes) -> None:
        class Lost(DLQPolicy[Ask, Answer]):
            def route(self, message: Message[Ask, Any], error: Exception) -> Any:
                raise RuntimeError("no idea")

        boxes.send()
        boxes.run(failing(ValueError("x")), dlq=Lost(boxes.dead, 1))
        assert boxes.letter().delivery_count == 1

    def test_errors_have_different_dead_letter_mailboxes(self, boxes: Boxes) -> None:
        quota: Mailbox[DeadLetter[Ask], None] = Mailbox(boxes.broker, "quota-dlq", body=DeadLetter[Ask])
        routes: DLQRoutes[Ask, Answer] = DLQRoutes(boxes.dead, 1, routes={ProviderError: quota})
        for error in (QuotaError("x"), ValueError("y")):
            boxes.send()
            boxes.run(failing(error), dlq=routes)
        assert (quota.approximate_count(), boxes.dead.approximate_count()) == (1, 1)

    def test_body_that_kills_its_consumers_is_dead_and_answered(self, boxes: Boxes) -> None:
        boxes.run(len, dlq=boxes.policy)
        request = boxes.send()
        for _ in range(3):
            assert len(boxes.requests.receive(visibility_timeout=10)) == 1
            boxes.clock.advance("11s")
        boxes.broker.run_maintenance()
        (answer,) = boxes.answers()
        assert (answer.request_id, answer.success) == (request.request_id, False)
        letter = boxes.letter()
        assert (letter.reason, letter.delivery_count, letter.body) == ("worker_lost", 3, request)

    def test_without_a_policy_a_request_dies_in_its_mailbox_after_five_deliveries(self, boxes: Boxes) -> None:
        boxes.send()
        boxes.run(failing(ValueError("x")), times=4)
        assert boxes.answers() == []
        boxes.run(failing(ValueError("x")))
        (dead,) = boxes.broker.find(queue="requests").items
        assert (dead.dead_reason, dead.counters.attempts) == ("retries_exhausted", 5)
        assert [answer.success for answer in boxes.answers()] == [False]

    def test_another_run_may_be_asked_for_and_does_not_count(self, boxes: Boxes) -> None:
        boxes.send()
        boxes.run(failing(VisibilityExpansionRequired()), times=9, dlq=boxes.policy)
        (message,) = boxes.requests.receive()
        assert (message.delivery_count, message.failures) == (1, 0)

    def test_request_after_its_deadline_is_dead_and_answered(self, boxes: Boxes) -> None:
        now = datetime.fromtimestamp(boxes.clock.now() / 1_000_000, UTC)
        request = boxes.send(deadline=now + timedelta(seconds=30))
        boxes.clock.advance("31s")
        boxes.run(len, dlq=boxes.policy)
        boxes.broker.run_maintenance()
        (answer,) = boxes.answers()
        assert (answer.request_id, answer.success) == (request.request_id, False)
        with pytest.raises(InvalidInput, match="deadline"):  # it has no time zone
            boxes.send(deadline=datetime(2026, 1, 1))

    def test_loop_sets_the_settings_that_its_policy_needs_and_refuses_another_dead_letter_mailbox(
        self, boxes: Boxes
    ) -> None:
        boxes.run(len, dlq=boxes.policy)
        settings = boxes.broker.get_queue("requests").settings
        assert (settings.max_attempts, settings.max_losses, settings.dead_queue) == (0, 3, "requests-dlq")
        assert boxes.broker.get_queue("requests-dlq").settings.max_attempts == 0
        boxes.run(len, dlq=replace(boxes.policy, max_delivery_count=4))
        assert boxes.broker.get_queue("requests").settings.max_losses == 4
        other: Mailbox[DeadLetter[Ask], None] = Mailbox(boxes.broker, "other-dlq", body=DeadLetter[Ask])
        with pytest.raises(InvalidInput, match="the same dead-letter mailbox"):
            boxes.run(len, dlq=replace(boxes.policy, mailbox=other))
        with pytest.raises(InvalidParameterError, match="1 or more"):
            replace(boxes.policy, max_delivery_count=0)

    def test_loop_ends_at_shutdown_and_when_its_mailbox_is_closed(self, boxes: Boxes) -> None:
        loop: MainLoop[str, int] = MainLoop(
            requests=boxes.requests, handler=len, config=MainLoopConfig(retry=lambda n: 1)
        )
        assert (loop.running, loop.shutdown(timeout=0)) == (False, True)
        with pytest.raises(InvalidInput, match="was shut down; make another one"):
            loop.run(wait_time_seconds=0)
        boxes.requests.close()
        with MainLoop(requests=boxes.requests, handler=len) as closed, pytest.raises(MailboxClosedError):
            closed.run(wait_time_seconds=0)
