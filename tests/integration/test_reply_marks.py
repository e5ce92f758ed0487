"""Queues with replies on SQL stores: concurrent marks, and an engine that fails while a reply is put."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive import Broker, connect
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import REPLY_FOR, REPLY_TO
from redrive.errors import StoreError
from redrive.model.payload import JSON
from redrive.stores.relational import replies
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


def test_death_whose_reply_the_engine_fails_to_write_is_rolled_back_and_done_once_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(f"sqlite:///{tmp_path}/jobs.db", maintenance=False) as broker:
        for name in ("jobs", "replies"):
            broker.create_queue(name)
        id = ask(broker, "jobs")
        (lease,) = broker.lease("jobs")

        def fails(*_: Any) -> Any:
            raise apsw.IOError("the disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(replies, "put_batch", fails)
            with pytest.raises(StoreError):
                broker.bury(lease)
        assert broker.get(id).status == "active"
        assert broker.lease("replies") == []
        broker.bury(lease)
        assert [reply.headers[REPLY_FOR] for reply in broker.lease("replies", 10)] == [id]
