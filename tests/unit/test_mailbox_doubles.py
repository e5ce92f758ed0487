"""Doubles of mailboxes, as a program's own tests use them."""

import pytest

from redrive.mailbox import MailboxConnectionError, ReceiptHandleExpiredError, SerializationError
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
