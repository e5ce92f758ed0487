"""Queues with replies on SQL stores: concurrent marks, and an engine that fails while a reply is put."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from threading import Thread, get_ident
from typing import Any

import apsw
import psycopg
import pytest
from tests.until import until

from redrive import Broker, connect
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import REPLY_FOR, REPLY_TO
from redrive.errors import StoreError
from redrive.model.payload import JSON
from redrive.stores.relational.batch import Batch
from redrive.stores.rules import replies


def ask(broker: Broker, queue: str) -> str:
    (receipt,) = broker.submit(Put(queue, (NewItem(b"1", JSON, {REPLY_TO: "replies"}),)))
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


def test_transactions_that_mark_the_same_queues_do_not_deadlock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each puts into both queues, in opposite order, and has marked one before the other begins to mark."""
    with connect(postgres_url, maintenance=False) as ours, connect(postgres_url, maintenance=False) as theirs:
        for name in (*(f"queue-{number}" for number in range(9)), "replies"):
            ours.create_queue(name)
        # A set of two keys that are 8 apart is iterated in the order in which they were added.
        first, second = (Put(f"queue-{number}", (NewItem(b"1", JSON, {REPLY_TO: "replies"}),)) for number in (0, 8))
        theirs.put("queue-0", "so that it has read the queues")
        execute, marked = Batch.execute, defaultdict[int, list[int]](list)
        at_theirs = Thread(target=theirs.core.committer.commit, args=([second, first],))

        def executed(batch: Batch, statement: str, *rest: Any) -> Any:
            done = execute(batch, statement, *rest)
            if statement.startswith("UPDATE redrive_queue SET has_replies"):
                marked[get_ident()].append(rest[0][0])
                if not at_theirs.ident:
                    assert execute(batch, "SELECT 1").get == 1  # what was sent before it has arrived
                    at_theirs.start()
                    until(lambda: is_waiting_for_lock(postgres_url))
            return done

        monkeypatch.setattr(Batch, "execute", executed)
        ours.core.committer.commit([first, second])
        at_theirs.join()
        in_order = sorted({key for keys in marked.values() for key in keys})
        assert list(marked.values()) == [in_order, in_order], "none was rolled back by a deadlock and repeated"


def is_waiting_for_lock(url: str) -> bool:
    """Return whether a transaction of the server waits for a row of another one."""
    with psycopg.connect(url.partition("?")[0]) as connection:
        waiting = connection.execute("SELECT FROM pg_locks WHERE NOT granted AND locktype <> 'advisory'")
        return waiting.rowcount > 0


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
            patched.setattr(replies.PutPlan, "apply", fails)
            with pytest.raises(StoreError):
                broker.bury(lease)
        assert broker.get(id).status == "active"
        assert broker.lease("replies") == []
        broker.bury(lease)
        assert [reply.headers[REPLY_FOR] for reply in broker.lease("replies", 10)] == [id]
