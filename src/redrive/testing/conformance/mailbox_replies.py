"""Replies to messages of mailboxes, and requests that wait for the reply to their message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Broker, connect
from redrive.errors import (
    InvalidInput,
    PayloadTooLarge,
    QueueNotFound,
    Refused,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
)
from redrive.mailbox import (
    AsyncMailbox,
    DeadLetter,
    DLQPolicy,
    Mailbox,
    MailboxClosedError,
    MailboxResolutionError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    Message,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyMissingError,
    ReplyNotAvailableError,
    RequestFailedError,
    RequestTimeoutError,
    replay,
)
from redrive.model.queue_options import QueueOptions
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.mailboxes import Purchase, only_message
from redrive.testing.conformance.suite import OpenBroker, StorePair, StorePairSuite, Suite
from redrive.testing.fake_clock import FakeClock


class MailboxReplyConformance(Suite):
    """Replies to a mailbox, and requests without a reply mailbox."""

    @pytest.fixture
    def orders(self, broker: Broker) -> Mailbox[Purchase, int]:
        """Return a mailbox of orders whose replies are numbers."""
        return Mailbox(broker, "orders", body=Purchase, reply=int)

    @pytest.fixture
    def replies(self, broker: Broker) -> Mailbox[int, None]:
        """Return a mailbox for replies."""
        return Mailbox(broker, "replies", body=int)

    def test_replies_come_to_the_mailbox_that_the_message_names(
        self, orders: Mailbox[Purchase, int], replies: Mailbox[int, None]
    ) -> None:
        id = orders.send(order := Purchase(1), reply_to=replies)
        message = only_message(orders.receive())
        assert message.reply_to is not None
        assert message.reply_to.name == "replies"
        message.reply(1)
        message.reply(2)
        message.acknowledge(reply=3)
        received = replies.receive(max_messages=10)
        assert [reply.body for reply in received] == [1, 2, 3]
        assert {(reply.reply_for, reply.request_id, reply.error) for reply in received} == {
            (id, str(order.request_id), None)
        }

    def test_reply_to_may_be_a_name_and_has_to_exist(
        self, orders: Mailbox[Purchase, int], replies: Mailbox[int, None]
    ) -> None:
        with pytest.raises(MailboxResolutionError) as unknown:
            orders.send(Purchase(1), reply_to="nowhere")
        assert isinstance(unknown.value, QueueNotFound)
        assert replies.approximate_count() == 0
        orders.send(Purchase(1), reply_to="replies")
        only_message(orders.receive()).acknowledge(reply=5)
        assert only_message(replies.receive()).body == 5

    def test_reply_after_the_end_is_refused(
        self, orders: Mailbox[Purchase, int], replies: Mailbox[int, None], clock: FakeClock
    ) -> None:
        for _ in range(3):
            orders.send(Purchase(1), reply_to=replies)
        acknowledged, nacked, late = orders.receive(max_messages=3, visibility_timeout=10)
        acknowledged.acknowledge()
        nacked.nack()
        for message in (acknowledged, nacked):
            with pytest.raises(MessageFinalizedError) as finalized:
                message.reply(1)
            assert isinstance(finalized.value, Refused)
        clock.advance("11s")
        orders.receive(max_messages=10)
        with pytest.raises(ReceiptHandleExpiredError):
            late.reply(1)
        with pytest.raises(ReceiptHandleExpiredError):
            late.acknowledge(reply=1)
        assert replies.approximate_count() == 0

    def test_message_that_asks_for_no_reply_takes_none(self, orders: Mailbox[Purchase, int]) -> None:
        orders.send(Purchase(1))
        message = only_message(orders.receive())
        with pytest.raises(ReplyNotAvailableError) as refused:
            message.reply(1)
        assert isinstance(refused.value, InvalidInput)
        with pytest.raises(ReplyNotAvailableError):
            message.acknowledge(reply=1)
        message.acknowledge()

    def test_reply_whose_mailbox_is_gone_does_not_keep_the_message(
        self, orders: Mailbox[Purchase, int], replies: Mailbox[int, None], broker: Broker
    ) -> None:
        orders.send(Purchase(1), reply_to=replies)
        broker.delete_queue("replies")
        message = only_message(orders.receive())
        with pytest.raises(MailboxResolutionError):
            message.reply(1)
        assert "'replies' does not exist" in str(message.acknowledge(reply=2).reply_refused)
        assert orders.approximate_count() == 0

    def test_reply_to_a_full_mailbox_does_not_keep_the_message(
        self, orders: Mailbox[Purchase, int], broker: Broker
    ) -> None:
        full: Mailbox[int, None] = Mailbox(broker, "replies", body=int, settings={"max_size": 1})
        for number in range(2):
            orders.send(Purchase(number), reply_to=full)
        first, second = (message.acknowledge(reply=1) for message in orders.receive(max_messages=2))
        assert first.reply_refused is None
        assert "'replies'" in str(second.reply_refused)
        assert (orders.approximate_count(), full.approximate_count()) == (0, 1)

    def test_reply_that_does_not_fit_is_refused_and_leaves_the_message_to_its_consumer(self, broker: Broker) -> None:
        questions: Mailbox[str, str] = Mailbox(broker, "questions", body=str, reply=str)
        answers: Mailbox[str, None] = Mailbox(broker, "answers", body=str, settings={"max_payload_size": 100})
        questions.send("?", reply_to=answers)
        message = only_message(questions.receive())
        with pytest.raises(PayloadTooLarge):
            message.reply("y" * 100)
        with pytest.raises(PayloadTooLarge):
            message.acknowledge(reply="y" * 100)
        assert not message.is_finalized
        id = message.reply("shorter")
        message.acknowledge(reply="short")
        first, last = answers.receive(max_messages=10)
        assert (first.id, first.body, last.body) == (id, "shorter", "short")
        assert questions.approximate_count() == 0

    def test_reply_that_does_not_fit_leaves_a_request_to_be_answered(self, broker: Broker) -> None:
        settings: QueueOptions = {"max_payload_size": 100}
        questions: Mailbox[str, str] = Mailbox(broker, "questions", body=str, reply=str, settings=settings)
        caller = Background(lambda: questions.request("?", "10m"))
        message = only_message(questions.receive(wait_time_seconds=20))
        for send in (message.reply, lambda reply: message.acknowledge(reply=reply)):
            with pytest.raises(PayloadTooLarge):
                send("y" * 100)
        assert message.reply("a first one") is None
        message.acknowledge()
        assert caller.result() == "a first one"

    def test_death_is_answered_with_an_error(
        self, orders: Mailbox[Purchase, int], replies: Mailbox[int, None], broker: Broker
    ) -> None:
        id = orders.send(order := Purchase(1), reply_to=replies)
        broker.bury_items(id)
        reply = only_message(replies.receive())
        assert (reply.reply_for, reply.request_id) == (id, str(order.request_id))
        assert "Dead-lettered after 0 attempts" in str(reply.error)
        with pytest.raises(RequestFailedError):
            assert reply.body
        reply.acknowledge()

    def test_request_gets_the_reply_to_its_message(self, orders: Mailbox[Purchase, int]) -> None:
        callers = [Background(lambda n=n: orders.request(Purchase(n), "10m")) for n in range(3)]  # type: ignore[misc]
        received: list[Message[Purchase, int]] = []
        while len(received) < len(callers):
            received += orders.receive(max_messages=10, wait_time_seconds=20)
        for message in received:
            message.reply(-1)
            message.acknowledge(reply=message.body.number * 2)
        assert [caller.result() for caller in callers] == [0, 2, 4]
        assert orders.approximate_count() == 0

    def test_request_of_a_message_that_dies_fails_immediately(
        self, orders: Mailbox[Purchase, int], broker: Broker, clock: FakeClock
    ) -> None:
        caller = Background(lambda: orders.request(Purchase(1), "10m"))
        clock.until_waiting()
        broker.fail(broker.lease("orders")[0], ValueError("no such product"), final=True)
        with pytest.raises(RequestFailedError, match="no such product") as failed:
            caller.result()
        assert isinstance(failed.value, TaskFailed)

    def test_request_that_is_not_answered_in_time(self, orders: Mailbox[Purchase, int]) -> None:
        with pytest.raises(RequestTimeoutError) as late:
            orders.request(Purchase(1), timeout=0)
        assert isinstance(late.value, ResultTimeout)
        assert only_message(orders.receive()).id == late.value.id

    def test_request_that_is_acknowledged_without_a_reply(
        self, orders: Mailbox[Purchase, int], clock: FakeClock
    ) -> None:
        caller = Background(lambda: orders.request(Purchase(1), "10m"))
        clock.until_waiting()
        only_message(orders.receive()).acknowledge()
        clock.advance("1s")
        with pytest.raises(ReplyMissingError) as missing:
            caller.result()
        assert isinstance(missing.value, ResultNotKept)

    async def test_async_mailbox_does_the_same(self, connect_async: Any, clock: FakeClock) -> None:
        async with connect_async(clock=clock, maintenance=False) as broker:
            orders: AsyncMailbox[Purchase, int] = AsyncMailbox(broker, "orders", body=Purchase, reply=int)
            replies: AsyncMailbox[int, None] = AsyncMailbox(broker, "replies", body=int)
            await orders.send(Purchase(5), reply_to=replies)
            (message,) = await orders.receive()
            await message.reply(1)
            await message.extend_visibility(5)
            await message.acknowledge(reply=2)
            assert [reply.body for reply in await replies.receive(max_messages=5)] == [1, 2]

            async def serve() -> None:
                (asked,) = await orders.receive(wait_time_seconds=20)
                await asked.acknowledge(reply=asked.body.number + 1)

            _, answer = await asyncio.gather(serve(), orders.request(Purchase(6), "10m"))
            assert answer == 7
            await orders.send(Purchase(7))
            (message,) = await orders.receive()
            await message.nack()
            assert await orders.purge(1) == 1
            async with orders:
                assert await orders.approximate_count() == 0
            assert await orders.receive() == []
            with pytest.raises(MailboxClosedError):
                await orders.send(Purchase(8))


class MailboxElsewhereConformance(StorePairSuite):
    """Mailboxes of other brokers: on the same store, on another one that the program knows, and on an unknown one."""

    def test_mailbox_of_another_store_gets_the_replies_and_may_be_sent_to(self, pair: StorePair) -> None:
        asks: Mailbox[str, str] = Mailbox(pair.source, "asks", body=str, reply=str)
        answers: Mailbox[str, None] = Mailbox(pair.target, "answers", body=str)
        local: Mailbox[str, None] = Mailbox(pair.source, "answers", body=str)
        asks.send("?", reply_to=answers)
        message = only_message(asks.receive())
        assert message.reply_to is not None
        message.reply_to.send("sent")
        assert local.approximate_count() == 0
        message.acknowledge(reply="replied")
        pair.source.run_maintenance()
        assert [answer.body for answer in answers.receive(max_messages=10)] == ["sent", "replied"]

    def test_dead_letter_mailbox_of_another_store_gets_the_letters_and_gives_them_back(
        self, pair: StorePair, clock: FakeClock
    ) -> None:
        requests: Mailbox[MainLoopRequest[str], MainLoopResult[str]] = Mailbox(
            pair.source, "requests", body=MainLoopRequest[str], reply=MainLoopResult[str]
        )
        dead: Mailbox[DeadLetter[MainLoopRequest[str]], None] = Mailbox(
            pair.target, "requests-dlq", body=DeadLetter[MainLoopRequest[str]]
        )
        requests.send(MainLoopRequest("?"))
        policy: DLQPolicy[MainLoopRequest[str], MainLoopResult[str]] = DLQPolicy(mailbox=dead, max_delivery_count=1)
        loop: MainLoop[str, str] = MainLoop(requests=requests, handler=lambda request: request[9], dlq=policy)
        loop.run(max_iterations=1, wait_time_seconds=0)
        pair.source.run_maintenance()
        assert dead.approximate_count() == 1
        clock.advance("1s")
        assert replay(dead, requests, where=lambda letter: letter.body.request == "?").replayed == 1
        pair.target.run_maintenance()
        assert only_message(requests.receive()).body.request == "?"

    def test_mailbox_of_a_store_that_the_program_does_not_know_is_refused(
        self, broker: Broker, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        requests: Mailbox[MainLoopRequest[str], MainLoopResult[str]] = Mailbox(
            broker, "requests", body=MainLoopRequest[str], reply=MainLoopResult[str]
        )
        with connect("memory://", clock=clock) as unknown:
            for other in (unknown, open_broker(namespace="other")):
                results: Mailbox[MainLoopResult[str], None] = Mailbox(other, "results", body=MainLoopResult[str])
                letters: Mailbox[DeadLetter[MainLoopRequest[str]], None] = Mailbox(
                    other, "letters", body=DeadLetter[MainLoopRequest[str]]
                )
                loop: MainLoop[str, str] = MainLoop(requests=requests, handler=str, dlq=DLQPolicy(mailbox=letters))
                for use in (
                    lambda results=results: requests.send(MainLoopRequest("?"), reply_to=results),
                    lambda loop=loop: loop.run(max_iterations=1, wait_time_seconds=0),
                    lambda letters=letters: replay(letters, requests),
                ):
                    with pytest.raises(InvalidInput, match=r"is in another store, .*stores="):
                        use()
        assert requests.approximate_count() == 0

    def test_mailbox_of_another_broker_on_the_same_store_gets_the_replies(
        self, broker: Broker, open_broker: OpenBroker
    ) -> None:
        self.require("supports_processes")
        asks: Mailbox[str, str] = Mailbox(broker, "asks", body=str, reply=str)
        answers: Mailbox[str, None] = Mailbox(open_broker(), "answers", body=str)
        asks.send("?", reply_to=answers)
        only_message(asks.receive()).acknowledge(reply="!")
        assert only_message(answers.receive()).body == "!"
