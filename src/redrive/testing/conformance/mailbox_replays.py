"""Replay of dead letters, resolvers of mailboxes, and evaluation of a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redrive import Broker, Filter
from redrive.mailbox import (
    CompositeResolver,
    DeadLetter,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    EvalResult,
    InvalidParameterError,
    Mailbox,
    MailboxResolutionError,
    MainLoop,
    MainLoopResult,
    RegistryResolver,
    Score,
    StoreResolver,
    replay,
)
from redrive.model.item import Status
from redrive.testing.conformance.mailbox_loops import Answer, Boxes, failing
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class ReplayConformance(Suite):
    """Replay in one operation, or letter by letter."""

    @pytest.fixture
    def dead(self, broker: Broker, clock: FakeClock) -> Boxes:
        """Return mailboxes with four dead letters: two time-outs, and two invalid requests."""
        boxes = Boxes(broker, clock)
        policy = replace(boxes.policy, max_delivery_count=1)
        timeout, invalid = TimeoutError("late"), ValueError("wrong")
        for text, error in (("a", timeout), ("b", invalid), ("c", timeout), ("b", invalid)):
            boxes.send(text)
            boxes.run(failing(error), dlq=policy)
        boxes.answers()
        return boxes

    def received(self, boxes: Boxes) -> list[str]:
        """Return the received requests, and check that each is a first delivery that is still answered to `replies`."""
        messages = boxes.requests.receive(max_messages=10)
        assert all(message.delivery_count == 1 for message in messages)
        for message in messages:
            message.acknowledge(reply=MainLoopResult(message.body.request_id, 1))
        assert len(boxes.answers()) == len(messages)
        return [message.body.request for message in messages]

    def test_all_are_replayed_by_one_operation_that_can_be_undone(self, dead: Boxes) -> None:
        result = replay(dead.dead)
        assert (result.replayed, result.skipped, result.failed) == (4, 0, 0)
        assert result.operation is not None
        assert self.received(dead) == ["a", "b", "c", "b"]
        assert dead.dead.approximate_count() == 0

    def test_filter_selects_what_is_replayed(self, dead: Boxes) -> None:
        result = replay(dead.dead, where=Filter(status=Status.DEAD, error_type="TimeoutError"))
        assert (result.replayed, result.operation is not None) == (2, True)
        assert self.received(dead) == ["a", "c"]

    def test_predicate_selects_what_is_replayed(self, dead: Boxes) -> None:
        result = replay(dead.dead, where=lambda letter: "TimeoutError" in letter.last_error_type)
        assert (result.replayed, result.skipped, result.operation) == (2, 2, None)
        assert self.received(dead) == ["a", "c"]
        assert dead.dead.approximate_count() == 2

    def test_duplicates_are_replayed_once_and_bodies_may_be_transformed(self, dead: Boxes) -> None:
        result = replay(
            dead.dead,
            dead.requests,
            dedupe=lambda letter: letter.body.request,
            transform=lambda body: replace(body, request=body.request.upper()),
        )
        assert (result.replayed, result.duplicates) == (3, 1)
        assert self.received(dead) == ["A", "B", "C"]

    def test_limit_and_letters_that_a_consumer_holds(self, dead: Boxes) -> None:
        assert len(dead.dead.receive(visibility_timeout=60)) == 1
        result = replay(dead.dead, where=lambda letter: True, limit=2)
        assert (result.replayed, result.skipped) == (2, 1)
        with pytest.raises(InvalidParameterError):
            replay(dead.dead, limit=1, canary=1)

    def test_letter_whose_transformation_fails_stays(self, dead: Boxes) -> None:
        result = replay(dead.dead, transform=lambda body: replace(body, request=17))  # type: ignore[arg-type]
        assert (result.replayed, result.failed) == (0, 4)
        assert dead.dead.approximate_count() == 4
        assert len(result.errors) == 4
        assert all(": " in said for said in result.errors.values())

    def test_replay_says_why_a_letter_failed(self, dead: Boxes) -> None:
        nothing: dict[str, Any] = {}
        result = replay(dead.dead, transform=lambda body: nothing[body.request])
        assert sorted(result.errors.values()) == ["KeyError: 'a'", "KeyError: 'b'", "KeyError: 'b'", "KeyError: 'c'"]
        assert set(result.errors) == {item.id for item in dead.broker.find(queue=dead.dead.name).items}

    def test_mailboxes_are_resolved_by_name(self, dead: Boxes) -> None:
        registry = RegistryResolver({"mine": dead.replies})
        resolver = CompositeResolver(registry, StoreResolver(dead.broker, Answer))
        assert resolver.resolve("mine") is dead.replies
        assert resolver.resolve("replies").name == "replies"
        with pytest.raises(MailboxResolutionError):
            resolver.resolve("nowhere")
        with pytest.raises(MailboxResolutionError):
            registry.resolve("replies")


class EvalLoopConformance(Suite):
    """Evaluation of the processing of a loop."""

    def test_output_is_scored_and_a_failure_dies_as_its_policy_says(self, broker: Broker, clock: FakeClock) -> None:
        boxes = Boxes(broker, clock)
        kind = EvalRequest[str, int]
        requests: Mailbox[EvalRequest[str, int], EvalResult] = Mailbox(broker, "evals", body=kind, reply=EvalResult)
        results: Mailbox[EvalResult, None] = Mailbox(broker, "results", body=EvalResult)
        dead: Mailbox[DeadLetter[EvalRequest[str, int]], None] = Mailbox(broker, "evals-dlq", body=DeadLetter[kind])
        main: MainLoop[str, int] = MainLoop(requests=boxes.requests, handler=len)
        main.session = "session"
        seen: list[Any] = []

        def exact(output: int, expected: int) -> Score:
            if expected < 0:
                raise ValueError("no text is so short")
            return Score(float(output == expected), output == expected, f"{output} for {expected}")

        def with_session(output: int, expected: int, session: Any, input: str) -> Score:
            seen.append((session, input))
            return exact(output, expected)

        async def with_session_only(output: int, expected: int, session: str) -> Score:
            seen.append(session)
            return exact(output, expected)

        def with_option(output: int, expected: int, tolerance: int = 0) -> Score:
            return exact(output + tolerance, expected)

        evaluators: tuple[Any, ...] = (exact, with_session, with_session_only, with_option)
        for evaluator in evaluators:
            loop: EvalLoop[str, int, int] = EvalLoop(
                loop=main, evaluator=evaluator, requests=requests, dlq=DLQPolicy(dead, max_delivery_count=1)
            )
            for expected in (2, 3, -1):
                requests.send(EvalRequest("ab", expected), reply_to=results)
            loop.run(max_iterations=3, wait_time_seconds=0)
            scored = [message.body for message in results.receive(max_messages=10)]
            assert [result.score and (result.score.value, result.score.passed) for result in scored] == [
                (1.0, True),
                (0.0, False),
                None,
            ]
            assert scored[0].latency_ms is not None
            assert "no text is so short" in (scored[2].error or "")
        assert (seen[0], seen[-1]) == (("session", "ab"), "session")
        assert dead.approximate_count() == 4
