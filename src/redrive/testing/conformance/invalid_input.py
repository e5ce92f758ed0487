"""Invalid input: the same typed error on every store, without a change. Names and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, Dead, DeadReason, Failure, RedriveError, RetryVerdict, Status
from redrive.errors import InvalidInput, InvalidName, ItemNotFound, LeaseLost, QueueNotFound
from redrive.testing.conformance.actions import kill, places, take, take_all, values
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

BAD_VERDICTS: list[Any] = [
    RetryVerdict(-1),
    RetryVerdict(2**70),
    RetryVerdict(1.5),  # type: ignore[arg-type]  # values of a wrong type are checked at run time
    RetryVerdict(0, Status.DEAD),
    RetryVerdict(0, Status.ACTIVE),
    Dead("nonsense"),  # type: ignore[arg-type]
    Dead(DeadReason.POLICY, to="jobs"),
    Dead(DeadReason.POLICY, to="a\0b"),
    "dead",
    7,
]
BAD_TEXTS_IN_SETTINGS: list[dict[str, Any]] = [
    {"final_errors": ["\ud800"]},
    {"final_errors": "ValueError"},
    {"final_errors": None},
    {"final_errors": 7},
    {"final_errors": [7]},
    {"on_dead": "\ud800"},
    {"dead_queue": {"\ud800": "morgue"}},
    {"dead_queue": {7: "morgue"}},
    {"error_rules": [{"error_class": "network", "type": "\ud800"}]},
    {"error_rules": [{"error_class": "weather", "type": "Rain"}]},
    {"error_rules": "network"},
    {"retry": {"attempts": 2, "by_type": {"\ud800": "1s"}}},
    {"retry": {"attempts": 2, "by_class": {"weather": "1s"}}},
    {"retry": {"attempts": 2, "function": "a\0b"}},
]

NO_ERRORS: list[Any] = [7, None, [], {"type": "ValueError"}, b"boom", ValueError]
NO_IDS: list[Any] = [None, 7, b"abc", object()]
NO_LEASES: list[Any] = [None, 7, [], {}]
NO_PUTS: list[Any] = ["ab", {"ab": 1}, 7, [1], ["ab"], [("jobs", 1, 2)], [{"jobs": 1, "more": 2}]]


class RefusalConformance(Suite):
    """Input that the broker refuses, and input that the store refuses."""

    @pytest.mark.parametrize("verdict", BAD_VERDICTS, ids=lambda verdict: repr(verdict)[:60])
    def test_bad_verdict_is_refused(self, broker: Broker, verdict: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.fail(lease, "boom", verdict=verdict)
        with pytest.raises(InvalidInput):
            broker.put_failed("jobs", 1, "boom", verdict=verdict)
        assert places(broker.stats("jobs")) == {"active": 1}
        broker.complete(lease)

    @pytest.mark.parametrize("error", NO_ERRORS, ids=lambda error: repr(error)[:20])
    def test_what_is_no_error_is_refused(self, broker: Broker, error: Any) -> None:
        broker.create_queue("jobs")
        waiting = [receipt.id for receipt in broker.put_many("jobs", [1, 2])][1]
        lease = take(broker)
        text = "an error is an exception, a text or a Failure, not"
        with pytest.raises(InvalidInput, match=text):
            broker.fail(lease, error)
        with pytest.raises(InvalidInput, match=text):
            broker.put_failed("jobs", 1, error)
        with pytest.raises(InvalidInput, match=text):
            broker.fail_items(waiting, error)
        if error is not None:
            with pytest.raises(InvalidInput, match=text):
                broker.bury(lease, error=error)
        assert places(broker.stats("jobs")) == {"active": 1, "pending": 1}
        assert broker.get(waiting).history == ()

    def test_note_that_is_no_text_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        bad: Any = ValueError("boom")
        with pytest.raises(InvalidInput, match="note is a text"):
            broker.bury(lease, note=bad)
        with pytest.raises(InvalidInput, match="note is a text"):
            broker.bury_items(lease.id, note=bad, force=True)
        for counted in (True, False):
            with pytest.raises(InvalidInput, match="error is a text"):
                broker.release(lease, error=bad, counted=counted)
        broker.complete(lease)

    @pytest.mark.parametrize("ids", NO_IDS, ids=lambda ids: repr(ids)[:20])
    def test_what_is_no_list_of_ids_is_refused(self, broker: Broker, ids: Any) -> None:
        for call in (broker.retry, broker.redrive, broker.complete_items, broker.drop, broker.bury_items):
            with pytest.raises(InvalidInput, match="one id or a list of ids"):
                call(ids)
        with pytest.raises(InvalidInput, match="one id or a list of ids"):
            broker.hold(ids, "somebody")

    def test_ids_may_come_from_a_generator(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [receipt.id for receipt in broker.put_many("jobs", [1, 2])]
        generated: Any = (id for id in ids)
        assert [settled.id for settled in broker.bury_items(generated)] == ids
        generated = (id for id in ids)
        assert [settled.status for settled in broker.redrive(generated)] == ["pending", "pending"]

    @pytest.mark.parametrize("values", [None, 7, object(), "abc", b"abc", {"a": 1}], ids=lambda value: repr(value)[:20])
    def test_what_is_no_list_of_values_is_refused(self, broker: Broker, values: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput, match="put_many takes a list of values"):
            broker.put_many("jobs", values)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("lease", NO_LEASES, ids=repr)
    def test_what_is_no_lease_is_refused(self, broker: Broker, lease: Any) -> None:
        for call in (broker.complete, broker.extend, broker.release, broker.bury):
            with pytest.raises(InvalidInput, match="pass its members one by one"):
                call(lease)
        with pytest.raises(InvalidInput, match="pass its members one by one"):
            broker.fail(lease, "boom")

    @pytest.mark.parametrize("puts", NO_PUTS, ids=repr)
    def test_puts_that_are_no_pairs_are_refused(self, broker: Broker, puts: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput, match="list of pairs"):
            broker.complete(lease, puts=puts)
        assert places(broker.stats("jobs")) == {"active": 1}

    def test_verdict_that_names_an_unknown_queue_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(QueueNotFound):
            broker.fail(lease, "boom", verdict=Dead(DeadReason.POLICY, to="nowhere"))
        assert broker.get(lease.id).status == "active"

    @pytest.mark.parametrize("settings", BAD_TEXTS_IN_SETTINGS, ids=ascii)
    def test_bad_text_in_a_setting_is_refused(self, broker: Broker, settings: dict[str, Any]) -> None:
        broker.create_queue("morgue")
        before = broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.update_queue("jobs", **settings)
        assert broker.get_queue("jobs") == before

    @pytest.mark.parametrize("content_type", ["\0", "\ud800", "a" * 300, 7], ids=lambda text: ascii(text)[:10])
    def test_bad_content_type_is_refused(self, broker: Broker, content_type: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", b"x", content_type=content_type)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("headers", ["a", ["a"], 7, b"a"], ids=repr)
    def test_headers_that_are_no_table_are_refused(self, broker: Broker, headers: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, headers=headers)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize(
        "page",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": 2**70},
            {"limit": "x"},
            {"before": "x"},
            {"before": 2**70},
            {"before": -1},
        ],
        ids=repr,
    )
    def test_bad_page_of_the_audit_is_refused(self, broker: Broker, page: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            broker.audit(**page)

    @pytest.mark.parametrize("confirm", [-1, 2, "1", 1.0, True], ids=repr)
    def test_bad_confirmation_is_refused(self, broker: Broker, confirm: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        with pytest.raises(RedriveError):
            broker.delete_queue("jobs", confirm=confirm)
        assert values(take_all(broker)) == [1]

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 1_000_000, "\x1b[31m"], ids=lambda text: ascii(text)[:10])
    def test_words_of_a_worker_are_kept_whatever_they_are(self, broker: Broker, text: str) -> None:
        broker.create_queue("jobs", max_attempts=0, retry={"attempts": 9})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), Failure(text, text, traceback=text, fingerprint=text, bases=(text,), worker=text))
        broker.release(take(broker), error=text)
        broker.release(take(broker), error=text, counted=False)
        broker.bury(take(broker), note=text)
        item = broker.get(receipt.id)
        assert [entry.event for entry in item.history] == ["failed", "released", "returned", "buried"]
        for entry in item.history:
            words = [entry.note or ""]
            if entry.failure is not None:
                words += [entry.failure.type, entry.failure.text, entry.failure.traceback or "", *entry.failure.bases]
            assert all("\0" not in word and len(word.encode()) < 50_000 for word in words)


BAD_NAMES: list[Any] = [
    "",
    " ",
    "a b",
    "a\0b",
    "\0",
    "a/b",
    "a@b",
    "ä",
    "🦆",
    "\ud800",
    "-x",
    ".x",
    "a\n",
    "x" * 129,
    "'; DROP TABLE items; --",
    None,
    7,
    b"jobs",
    ["jobs"],
]
GOOD_NAMES = ["a", "A", "0", "_", "jobs.eu-west:high_1", "x" * 128, "SELECT", "null"]


class NameConformance(Suite):
    """Names of queues."""

    @pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
    def test_bad_name_of_a_queue_is_refused_everywhere(self, broker: Broker, name: Any) -> None:
        for call in (
            lambda: broker.create_queue(name),
            lambda: broker.update_queue(name, max_size=1),
            lambda: broker.get_queue(name),
            lambda: broker.delete_queue(name),
            lambda: broker.pause_queue(name),
            lambda: broker.resume_queue(name),
            lambda: broker.stats(name),
            lambda: broker.put(name, 1),
            lambda: broker.put_many(name, [1]),
            lambda: broker.put_failed(name, 1, "boom"),
            lambda: broker.lease(name),
        ):
            with pytest.raises(InvalidName, match="queue"):
                call()
        assert broker.list_queues() == ()

    @pytest.mark.parametrize(
        "name", [name for name in BAD_NAMES if name is not None], ids=lambda name: ascii(name)[:20]
    )
    def test_bad_name_of_a_dead_queue_is_refused(self, broker: Broker, name: Any) -> None:
        with pytest.raises(InvalidInput):
            broker.create_queue("jobs", dead_queue=name)
        assert broker.list_queues() == ()

    @pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])
    def test_good_name_is_taken_as_it_is(self, broker: Broker, name: str) -> None:
        assert broker.create_queue(name).name == name
        broker.put(name, 1)
        assert values(take_all(broker, name)) == [1]

    def test_names_differ_by_case(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("JOBS")
        broker.put("jobs", 1)
        assert take_all(broker, "JOBS") == []


class NamespaceConformance(Suite):
    """Namespaces on one store are isolated from each other."""

    def test_queues_of_another_namespace_do_not_exist(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs", max_size=1)
        assert two.list_queues() == ()
        with pytest.raises(QueueNotFound, match="in namespace 'two'"):
            two.put("jobs", 1)
        two.create_queue("jobs", max_size=2)
        assert one.get_queue("jobs").settings.max_size == 1

    def test_items_of_another_namespace_are_not_given(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        one.put("jobs", "one")
        assert take_all(two) == []
        assert values(take_all(one)) == ["one"]

    def test_items_of_another_namespace_cannot_be_reached_by_id(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        dead = kill(one).id
        pending = one.put("jobs", 1).id
        for id in (dead, pending):
            with pytest.raises(ItemNotFound):
                two.get(id)
            for change in (two.retry, two.redrive, two.drop, two.complete_items, two.archive, two.bury_items):
                with pytest.raises(ItemNotFound):
                    change(id)
        assert two.hold([pending], "me") == 0
        assert (one.get(dead).status, one.get(pending).held_by) == ("dead", ())

    def test_leases_of_another_namespace_cannot_be_settled(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs")
        one.put("jobs", 1)
        lease = take(one)
        for use in (two.complete, two.extend, two.release):
            with pytest.raises(LeaseLost):
                use(lease)
        with pytest.raises(LeaseLost):
            two.fail(lease, "boom")
        one.complete(lease)

    def test_upkeep_of_one_namespace_leaves_the_other_alone(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        one, two = open_broker("one"), open_broker("two")
        for broker in (one, two):
            broker.create_queue("jobs", expire_timeout="1s", keep_dead="1s")
        id = one.put("jobs", 1).id
        clock.advance("1s")
        assert two.run_maintenance().expired == 0
        assert one.get(id).status == "pending"
        assert one.run_maintenance().expired == 1
        clock.advance("2s")
        two.run_maintenance()
        assert one.get(id).status == "dead"

    def test_audit_of_another_namespace_is_not_shown(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs")
        one.drop(kill(one).id)
        assert two.audit() == ()

    def test_hold_of_another_namespace_is_not_let_go(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("jobs")
        one.put("jobs", 1, held_by="breaker")
        assert two.unhold("breaker") == 0
        assert take_all(one) == []

    def test_dead_queue_is_one_of_the_same_namespace(self, open_broker: OpenBroker) -> None:
        one, two = open_broker("one"), open_broker("two")
        one.create_queue("morgue")
        with pytest.raises(InvalidInput, match="dead_queue 'morgue' does not exist"):
            two.create_queue("jobs", dead_queue="morgue")

    def test_death_record_names_the_namespace(self, open_broker: OpenBroker) -> None:
        broker = open_broker("one")
        broker.create_queue("jobs")
        assert broker.get(kill(broker).id).deaths[0].namespace == "one"
