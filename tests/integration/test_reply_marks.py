"""Queues with replies on PostgreSQL: two processes mark queues at the same time, and neither misses a mark."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, connect
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import REPLY_FOR, REPLY_TO
from redrive.model.payload import JSON
from redrive.stores.relational.batch import Batch


def ask(broker: Broker, queue: str) -> str:
    (receipt,) = broker._core.call(Put(queue, (NewItem(b"1", JSON, {REPLY_TO: "replies"}),)))
    return str(receipt.id)


def test_mark_of_another_process_during_our_own_is_seen(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(postgres_url, maintenance=False) as ours, connect(postgres_url, maintenance=False) as theirs:
        for name in ("first", "second", "replies"):
            ours.create_queue(name)
        theirs.put("second", "so that it has read the queues")
        ours.put("first", "and so has this one")
        write_marks, asked = Batch.write_marks, list[str]()

        def marked_in_between(batch: Batch, *rest: Any) -> None:
            if batch.replying and not asked:
                asked.append("")  # only once
                asked[0] = ask(theirs, "second")
            write_marks(batch, *rest)

        monkeypatch.setattr(Batch, "write_marks", marked_in_between)
        asked.append(ask(ours, "first"))
        assert all(asked)
        for queue in ("first", "second"):
            for lease in ours.lease(queue, 10):
                ours.bury(lease)
        answered = sorted(reply.headers[REPLY_FOR] for reply in ours.lease("replies", 10))
        assert answered == sorted(asked)
