"""Doubles of mailboxes, as a program's own tests use them."""

import pytest

from redrive.errors import InvalidInput, StoreUnavailable
from redrive.mailbox import (
    DeadLetter,
    DLQPolicy,
    MailboxConnectionError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    ReceiptHandleExpiredError,
    SerializationError,
)
from redrive.testing import CollectingMailbox, FakeMailbox, NullMailbox


def test_null_mailbox_drops_what_has_the_right_type() -> None:
    with NullMailbox("x", body=int) as mailbox:
        mailbox.send(1)
        with pytest.raises(SerializationError):
            mailbox.send("one")  # type: ignore[arg-type]
        assert mailbox.receive() == []
        assert mailbox.approximate_count() == 0


def test_collecting_mailbox_keeps_what_was_sent() -> None:
    with CollectingMailbox("x", body=int) as mailbox, CollectingMailbox[None, None]("replies") as replies:
        mailbox.send(1)
        mailbox.send(2, reply_to=replies, headers={"a": "b"})
        assert [sent.body for sent in mailbox.sent] == [1, 2]
        assert mailbox.sent[1][1:] == ("replies", {"a": "b"})
        assert mailbox.receive() == []


def test_fake_mailbox_breaks_its_connection_and_expires_handles() -> None:
    with FakeMailbox("x", body=int, reply=str) as mailbox:
        mailbox.is_connected = False
        for use in (lambda: mailbox.send(1), mailbox.receive, mailbox.approximate_count):
            with pytest.raises(MailboxConnectionError):
                use()
        mailbox.inject(7)
        assert not mailbox.is_connected
        mailbox.is_connected = True
        (message,) = mailbox.receive()
        mailbox.expire_handle(message)
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        (again,) = mailbox.receive()
        assert (again.body, again.delivery_count) == (7, 2)
        again.acknowledge()


def test_error_of_a_connection_is_made_with_words() -> None:
    error = MailboxConnectionError("the cable is out")
    assert (str(error), error.problem, error.store) == ("the cable is out", "the cable is out", "")
    assert isinstance(error, StoreUnavailable)
    assert error.retryable
    with FakeMailbox("x") as mailbox:
        mailbox.is_connected = False
        with pytest.raises(MailboxConnectionError, match="store x is not available: the test has broken"):
            mailbox.receive()


def test_fake_mailboxes_reply_to_each_other() -> None:
    asks, answers = FakeMailbox("asks", body=str, reply=str), FakeMailbox("answers", body=str)
    others = FakeMailbox("others", body=str, reply=str)
    asks.send("?", reply_to=answers)
    (message,) = asks.receive()
    id = message.reply("first")
    message.acknowledge(reply="last")
    first, last = answers.receive(max_messages=10)
    assert (first.id, first.body, last.body) == (id, "first", "last")
    others.send("?", reply_to=answers)
    (message,) = others.receive()
    message.acknowledge(reply="of another")
    assert [answer.body for answer in answers.receive()] == ["of another"]


def test_fake_mailboxes_that_both_have_messages_or_one_name_share_no_store() -> None:
    asks, same, full = FakeMailbox("asks"), FakeMailbox("asks"), FakeMailbox("full")
    asks.send("?")
    full.send("!")
    for other in (same, full):
        with pytest.raises(InvalidInput, match="cannot share a store"):
            asks.send("?", reply_to=other)


def test_fake_mailbox_is_the_dead_letter_mailbox_of_another() -> None:
    requests = FakeMailbox("requests", body=MainLoopRequest[str], reply=MainLoopResult[int])
    letters = FakeMailbox("letters", body=DeadLetter[MainLoopRequest[str]])
    requests.send(MainLoopRequest("x"))
    policy = DLQPolicy(letters, max_delivery_count=1)
    loop: MainLoop[str, int] = MainLoop(requests=requests, handler=lambda request: 1 // 0, dlq=policy)
    loop.run(max_iterations=1, wait_time_seconds=0)
    (message,) = letters.receive()
    assert (message.body.body.request, message.body.source_mailbox) == ("x", "requests")
