"""Services that reply with what a function returns, loops on an event loop, and requests that fail fast."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Broker
from redrive.mailbox import (
    AsyncDLQConsumer,
    AsyncMailbox,
    AsyncMainLoop,
    DeadLetter,
    DLQPolicy,
    Mailbox,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    RequestFailedError,
    RequestTimeoutError,
)
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.mailbox_loops import Answer, Ask, failing
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class ServiceConformance(Suite):
    """Requests and replies of plain types, without wrappers."""

    @pytest.fixture
    def questions(self, broker: Broker) -> Mailbox[str, int]:
        """Return a mailbox of texts whose replies are numbers."""
        return Mailbox(broker, "questions", body=str, reply=int)

    def ask(self, questions: Mailbox[str, int], clock: FakeClock, **options: Any) -> Background[int]:
        """Send a request in a thread, and return once that waits for the reply."""
        caller = Background(lambda: questions.request("abc", "10h", **options))
        clock.until_waiting()
        return caller

    def test_service_replies_with_what_its_function_returns(
        self, questions: Mailbox[str, int], clock: FakeClock
    ) -> None:
        caller = self.ask(questions, clock)
        questions.serve(len, max_iterations=1, wait_time_seconds=0)
        assert caller.result() == 3
        assert questions.approximate_count() == 0

    def test_message_that_fails_in_a_service_is_retried_and_dies(
        self, questions: Mailbox[str, int], broker: Broker, clock: FakeClock
    ) -> None:
        caller = self.ask(questions, clock)
        for deliveries in (1, 2):
            config = MainLoopConfig(max_delivery_count=2)
            questions.serve(failing(ValueError("no")), config=config, max_iterations=1, wait_time_seconds=0)
            assert broker.stats("questions").dead == (deliveries == 2)
            clock.advance("15m")
        with pytest.raises(RequestFailedError, match="no"):
            caller.result()

    @pytest.mark.parametrize("end", ["failure", "policy", "release", "loss"])
    def test_request_that_fails_fast_is_dead_after_its_first_delivery(
        self, questions: Mailbox[str, int], broker: Broker, clock: FakeClock, end: str
    ) -> None:
        caller = self.ask(questions, clock, fail_fast=True)
        match end:
            case "failure":
                questions.serve(failing(ValueError("no")), max_iterations=1, wait_time_seconds=0)
            case "policy":
                letters: Mailbox[DeadLetter[str], None] = Mailbox(broker, "letters", body=DeadLetter[str])
                policy: DLQPolicy[str, int] = DLQPolicy(letters, exclude_errors=frozenset({ValueError}))
                questions.serve(failing(ValueError("no")), dlq=policy, max_iterations=1, wait_time_seconds=0)
                assert letters.approximate_count() == 1
            case "release":
                questions.receive()[0].nack()
            case "loss":
                questions.receive(visibility_timeout=1)
                clock.advance("2s")
                broker.run_maintenance()
        clock.advance("1s")
        with pytest.raises(RequestFailedError):
            caller.result()
        assert questions.receive() == []

    def test_request_that_does_not_fail_fast_is_delivered_again(self, questions: Mailbox[str, int]) -> None:
        with pytest.raises(RequestTimeoutError):
            questions.request("abc", 0)
        questions.receive()[0].nack()
        assert questions.receive()[0].delivery_count == 2

    async def test_handlers_of_an_event_loop_run_on_it(self, connect_async: Any, clock: FakeClock) -> None:
        loops = []

        async def answer(text: str) -> int:
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())
            return len(text)

        async with connect_async(clock=clock, maintenance=False) as broker:
            questions: AsyncMailbox[str, int] = AsyncMailbox(broker, "questions", body=str, reply=int)
            for handler in (answer, len):
                serving = asyncio.create_task(questions.serve(handler, max_iterations=1))
                assert await questions.request("abc", "10m") == 3
                await serving
            assert loops == [asyncio.get_running_loop()]

    async def test_loops_of_an_event_loop_follow_the_policy_and_handle_letters(
        self, connect_async: Any, clock: FakeClock
    ) -> None:
        async def refuse(request: str) -> int:
            raise SystemExit(f"no {request}")  # does not end the event loop

        seen: list[str] = []

        async def look(letter: DeadLetter[Ask]) -> None:
            seen.append(letter.body.request)

        async with connect_async(clock=clock, maintenance=False) as broker:
            requests: AsyncMailbox[Ask, Answer] = AsyncMailbox(broker, "requests", body=Ask, reply=Answer)
            results: AsyncMailbox[Answer, None] = AsyncMailbox(broker, "results", body=Answer)
            letters: AsyncMailbox[DeadLetter[Ask], None] = AsyncMailbox(broker, "letters", body=DeadLetter[Ask])
            policy: DLQPolicy[Ask, Answer] = DLQPolicy(letters, max_delivery_count=1)
            await requests.send(MainLoopRequest("x"), reply_to=results)
            loop: AsyncMainLoop[str, int] = AsyncMainLoop(requests=requests, handler=refuse, dlq=policy)
            await loop.run(max_iterations=1, wait_time_seconds=0)
            (result,) = await results.receive()
            assert "no x" in str(result.body.error)
            consumer: AsyncDLQConsumer[Ask] = AsyncDLQConsumer(mailbox=letters, handler=look)
            await consumer.run(max_iterations=1, wait_time_seconds=0)
            assert (seen, consumer.counts) == (["x"], {"processed": 1})
            assert not consumer.running
            assert await consumer.shutdown()

    async def test_loop_that_is_cancelled_finishes_its_message(self, connect_async: Any, clock: FakeClock) -> None:
        began, go = asyncio.Event(), asyncio.Event()

        async def answer(request: str) -> int:
            began.set()
            await go.wait()
            return len(request)

        async with connect_async(clock=clock, maintenance=False) as broker:
            requests: AsyncMailbox[Ask, Answer] = AsyncMailbox(broker, "requests", body=Ask, reply=Answer)
            results: AsyncMailbox[MainLoopResult[int], None] = AsyncMailbox(broker, "results", body=Answer)
            for text in ("x", "stays"):
                await requests.send(MainLoopRequest(text), reply_to=results)
            loop: AsyncMainLoop[str, int] = AsyncMainLoop(requests=requests, handler=answer)
            running = asyncio.create_task(loop.run())
            await began.wait()
            running.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not loop.running
            assert [message.body.output for message in await results.receive(max_messages=10)] == [1]
            assert await requests.approximate_count() == 1
