"""The retry policy of an item: it replaces the whole policy of the queue, and stays with the item."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from redrive import Broker, new_item
from redrive.errors import InvalidInput, InvalidSetting
from redrive.model.duration import SECOND
from redrive.model.item import Overrides
from redrive.model.limits import MAX_ITEM_RETRY_BYTES
from redrive.model.retry_policy import MAX_LISTED_DELAYS, parse_retry_policy
from redrive.testing.conformance.actions import Boom, lose, places, take, take_all
from redrive.testing.conformance.suite import OpenBroker, StorePair, StorePairSuite, Suite, only
from redrive.testing.fake_clock import FakeClock

NEVER = {"attempts": 9, "delay": "never"}
PATIENT = {"attempts": 3, "delay": "exponential", "base": "1m", "cap": "1h"}
RULES = {
    "attempts": 4,
    "delays": ["1s", "2s"],
    "cap": "1h",
    "jitter": True,
    "classes": True,
    "by_class": {"network": {"function": "polite"}},
    "by_type": {"Boom": "never", "app.Busy": {"delay": "linear", "base": "5m"}},
}


def delays(broker: Broker, clock: FakeClock, error: BaseException | str = "boom", most: int = 10) -> list[float]:
    """Fail the next item until it is dead, or `most` times. Return the seconds that it waits after each failure."""
    waits: list[float] = []
    for _ in range(most):
        settled = broker.fail(take(broker), error)
        if settled.status == "dead":
            break
        assert (settled.status, settled.ready_at is None) == ("failed", False)
        waits.append(((settled.ready_at or 0) - clock.now()) / SECOND)
        clock.advance(waits[-1])
    return waits


class ItemRetryConformance(Suite):
    """A put with a retry policy: `put(…, retry=…)`."""

    @pytest.mark.parametrize(
        ("own", "waits"),
        [
            ({}, [0, 0, 0]),
            ({"delay": "immediate"}, [0, 0, 0]),
            ({"cooldown": "30s"}, [30, 30, 30]),
            ({"delay": "linear", "base": "5m"}, [300, 600, 900]),
            ({"delay": "exponential", "base": "1m", "cap": "60m"}, [60, 120, 240, 480, 960, 1920, 3600, 3600]),
            ({"delays": ["1s", "1m"]}, [1, 60, 60]),
        ],
        ids=repr,
    )
    def test_item_is_retried_by_its_own_policy(
        self, broker: Broker, clock: FakeClock, own: dict[str, Any], waits: list[float]
    ) -> None:
        broker.create_queue("jobs", retry=NEVER)
        receipt = broker.put("jobs", 1, retry={"attempts": len(waits) + 1, **own}, max_attempts=0)
        assert delays(broker, clock) == waits
        assert broker.get(receipt.id).dead_reason == "retries_exhausted"

    @pytest.mark.parametrize("own", [NEVER, {"attempts": 0}, {"attempts": 1, "cooldown": "1s"}, {}], ids=repr)
    def test_item_may_be_retried_less_than_its_queue_says(
        self, broker: Broker, clock: FakeClock, own: dict[str, Any]
    ) -> None:
        broker.create_queue("jobs", retry=PATIENT)
        receipt = broker.put("jobs", 1, retry=own)
        assert delays(broker, clock) == []
        assert broker.get(receipt.id).dead_reason == "retries_exhausted"
        broker.put("jobs", 2)
        assert delays(broker, clock) == [60, 120]

    def test_nothing_of_the_policy_of_the_queue_is_left(self, broker: Broker, clock: FakeClock) -> None:
        by_error = {"by_type": {"Boom": "never"}, "by_class": {"network": "never"}, "classes": True}
        broker.create_queue("jobs", retry={"attempts": 5, "cooldown": "1h", "cap": "1s", **by_error})
        for error in (Boom("?"), ConnectionError("x"), PermissionError("x")):
            broker.put("jobs", 1, retry={"attempts": 3, "cooldown": "5s"})
            assert delays(broker, clock, error) == [5, 5]

    def test_policy_of_an_item_may_go_by_type_and_class(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        rules = {"by_type": {"Boom": "7s", "KeyError": "never"}, "by_class": {"network": "1m"}}
        for error, waits in ((Boom("?"), [7, 7]), (ConnectionError("x"), [60, 60]), (KeyError("x"), []), ("?", [1, 1])):
            receipt = broker.put("jobs", 1, retry={"attempts": 3, "cooldown": "1s", **rules})
            assert delays(broker, clock, error) == waits
            reason = "retries_exhausted" if waits else "final_error"
            assert broker.get(receipt.id).dead_reason == reason

    def test_final_errors_of_the_queue_are_final(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", final_errors=["Boom"])
        receipt = broker.put("jobs", 1, retry=PATIENT)
        assert delays(broker, clock, Boom("?")) == []
        assert broker.get(receipt.id).dead_reason == "final_error"

    def test_limit_is_raised_by_default_and_not_where_the_queue_has_one(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, retry={"attempts": 8})
        assert delays(broker, clock) == [0] * 7
        broker.update_queue("jobs", max_attempts=3)
        limited = broker.put("jobs", 1, retry={"attempts": 8})
        assert delays(broker, clock) == [0] * 2
        assert broker.get(limited.id).dead_reason == "max_attempts"
        broker.put("jobs", 1, retry={"attempts": 8}, max_attempts=0)
        assert delays(broker, clock) == [0] * 7

    def test_settings_edited_later_do_not_touch_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry={"attempts": 5})
        broker.put("jobs", 1, retry=PATIENT)
        assert delays(broker, clock, most=1) == [60]
        lease = take(broker)
        broker.update_queue("jobs", retry=NEVER)
        settled = broker.fail(lease, "boom")
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 120 * SECOND)

    def test_function_of_the_program_gives_the_delay_of_an_item(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        broker = open_broker(backoffs={"minutes": lambda failures: min(2**failures, 60) * 60})
        broker.create_queue("jobs")
        broker.put("jobs", 1, retry={"attempts": 4, "function": "minutes"})
        assert delays(broker, clock) == [120, 240, 480]

    def test_item_whose_function_is_unknown_here_is_retried(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, retry={"attempts": 4, "function": "elsewhere"})
        assert delays(broker, clock) == [1, 2, 4]

    def test_loss_is_no_failure(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, retry=NEVER)
        item = lose(broker, clock)
        assert (item.status, item.counters.losses, item.counters.failures) == ("pending", 1, 0)

    def test_failure_by_an_operator_is_judged_by_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        settled = broker.fail_items(broker.put("jobs", 1, retry=PATIENT).id, "boom")
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 60 * SECOND)

    def test_work_that_failed_outside_is_judged_by_it(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=NEVER)
        item = broker.get(broker.put_failed("jobs", 1, Boom("outside"), retry=PATIENT).id)
        assert (item.status, item.ready_at) == ("failed", clock.now() + 60 * SECOND)
        clock.advance("1m")
        assert delays(broker, clock) == [120]
        broker.update_queue("jobs", retry=PATIENT)
        assert broker.get(broker.put_failed("jobs", 2, Boom("outside"), retry=NEVER).id).status == "dead"

    def test_policy_of_a_known_key_is_that_of_the_first_put(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, idempotency_key="k", retry=PATIENT)
        broker.put("jobs", 1, idempotency_key="k", retry=NEVER)
        broker.put_failed("jobs", 1, "outside", idempotency_key="k", retry=NEVER)
        assert delays(broker, clock) == [120]


class KeptRetryConformance(Suite):
    """An item keeps its policy through all changes."""

    @pytest.fixture
    def rules(self, broker: Broker) -> Overrides:
        """Return a policy with all fields set."""
        broker.create_queue("jobs")
        return Overrides(9, 8, parse_retry_policy(RULES))

    def test_policy_is_kept_by_every_way_to_put(self, broker: Broker, rules: Overrides) -> None:
        own: dict[str, Any] = {"max_attempts": 9, "max_losses": 8, "retry": RULES}
        receipt = broker.put("jobs", 1, **own)
        assert broker.get(receipt.id).overrides == rules
        lease = take(broker)
        assert lease.overrides == rules
        broker.complete(lease, puts=[("jobs", new_item(2, **own))])
        broker.put_many("jobs", [new_item(3, **own), 4])
        assert [each.overrides for each in take_all(broker)] == [rules, rules, Overrides()]

    @pytest.mark.parametrize(
        "again",
        [
            lambda broker, id: broker.retry(id),
            lambda broker, id: broker.redrive(id),
            lambda broker, id: broker.redrive(id, payload="edited"),
            lambda broker, id: broker.redrive(id, to="mails"),
            lambda broker, id: (broker.archive(id), broker.restore(id), broker.redrive(id))[-1],
        ],
        ids=["retry", "redrive", "edited", "elsewhere", "archived"],
    )
    def test_redrive_keeps_it(self, broker: Broker, clock: FakeClock, again: Callable[[Broker, str], Any]) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        broker.put("jobs", 1, retry=PATIENT)
        assert delays(broker, clock) == [60, 120]
        settled = again(broker, broker.find().items[0].id)
        lease = take(broker, settled.queue)
        assert broker.fail(lease, "boom").ready_at == clock.now() + 60 * SECOND

    def test_dead_queue_keeps_it_and_gives_it_back(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue", retry=NEVER)
        broker.create_queue("jobs", retry=NEVER, dead_queue="morgue")
        broker.put("jobs", 1, retry=PATIENT)
        for wait in (60, 120):
            assert broker.fail(take(broker), "boom").ready_at == clock.now() + wait * SECOND
            clock.advance(wait)
        dead = broker.fail(take(broker), "boom")
        assert (dead.queue, dead.status) == ("morgue", "pending")
        in_morgue = broker.get(dead.id)
        assert in_morgue.overrides == Overrides(retry=parse_retry_policy(PATIENT))
        assert broker.redrive(dead.id).queue == "jobs"
        assert broker.fail(take(broker), "boom").ready_at == clock.now() + 60 * SECOND

    def test_export_and_import_keep_it(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        broker, other = open_broker(), open_broker(namespace="other")
        for each in (broker, other):
            each.create_queue("jobs")
            each.create_queue("mails")
        broker.put("jobs", 1, retry=PATIENT)
        broker.put("mails", 2, retry=RULES, max_losses=3)
        assert delays(broker, clock) == [60, 120]
        assert other.import_items(broker.export(status="any", redacted=False)).imported == 2
        assert only(other, queue="mails", status="any").overrides == Overrides(None, 3, parse_retry_policy(RULES))
        other.redrive(only(other).id)
        assert delays(other, clock) == [60, 120]

    def test_line_with_a_policy_that_cannot_be_is_refused(self, broker: Broker, rules: Overrides) -> None:
        broker.put("jobs", 1, retry=RULES)
        (line,) = broker.export(status="any")
        for retry in (
            {"attempts": -1},
            {"attempts": 3, "colour": 1},
            {"attempts": 3, "delay": {"schedule": "sometimes"}},
            {"attempts": 3, "delay": {"schedule": "list", "delays": [1] * (MAX_LISTED_DELAYS + 1)}},
            {"attempts": 3, "delay": {"schedule": "function", "function": "no name"}},
            {"attempts": 9},
        ):
            changed = {**json.loads(line), "overrides": {"retry": retry, "max_attempts": 8}}
            with pytest.raises(InvalidInput, match="line 1: "):
                broker.import_items([json.dumps(changed)])
        assert places(broker.stats("jobs")) == {"pending": 1}


class RefusedRetryConformance(Suite):
    """Invalid policies: nothing is put, and the error names the fault."""

    @pytest.mark.parametrize(
        ("own", "problem"),
        [
            (3, "retry must be a table"),
            ("immediate", "retry must be a table"),
            ({"cooldown": "1s"}, r"retry\.attempts is missing"),
            ({"attempts": -1}, r"retry\.attempts must be a whole number"),
            ({"attempts": 3, "delay": "sometimes"}, r"retry\.delay must be one of"),
            ({"attempts": 3, "cooldown": "soon"}, r"retry\.cooldown 'soon' is not a duration"),
            ({"attempts": 3, "delays": ["1s"] * (MAX_LISTED_DELAYS + 1)}, r"retry\.delays must be a list of 1 to"),
            ({"attempts": 3, "function": len}, r"retry\.function must be a name"),
            ({"attempts": 3, "by_class": {"odd": "1s"}}, r"retry\.by_class\.odd is not an error class"),
            ({"attempts": 3, "by_type": {"\ud800": "1s"}}, "retry has a lone surrogate"),
            ({"attempts": 3, "by_type": {f"app.E{n}": "1s" for n in range(5_000)}}, "retry has .* bytes as JSON"),
            ({"attempts": 3, "max_retries": 2}, r"retry\.max_retries is not a setting \(did you mean attempts\?\)"),
        ],
        ids=lambda own: repr(own)[:60],
    )
    def test_policy_that_cannot_be_is_refused(self, broker: Broker, own: Any, problem: str) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=problem):
            broker.put("jobs", 1, retry=own)
        with pytest.raises(InvalidSetting, match=problem):
            broker.put_failed("jobs", 1, "boom", retry=own)
        assert places(broker.stats("jobs")) == {}

    def test_limit_below_the_attempts_is_refused_with_both_names(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=r"max_attempts 2 is lower than retry\.attempts 3"):
            broker.put("jobs", 1, max_attempts=2, retry=PATIENT)
        broker.put("jobs", 1, max_attempts=3, retry=PATIENT)
        broker.put("jobs", 1, max_attempts=0, retry=PATIENT)

    def test_longest_list_of_delays_fits(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        longest = {"attempts": 3, "delays": ["36525d"] * MAX_LISTED_DELAYS}
        receipt = broker.put("jobs", 1, retry=longest)
        assert broker.get(receipt.id).overrides.retry == parse_retry_policy(longest)
        assert MAX_LISTED_DELAYS * len("3155760000000000,") < MAX_ITEM_RETRY_BYTES


class RetryElsewhereConformance(StorePairSuite):
    """An item that moves to another store keeps its policy."""

    def test_dead_queue_in_another_store_keeps_it_and_gives_it_back(self, pair: StorePair, clock: FakeClock) -> None:
        pair.create_queues(retry=NEVER)
        pair.source.put("jobs", 1, retry=RULES, max_losses=3)
        before = take(pair.source)
        pair.source.fail(before, "boom", final=True)
        pair.source.run_maintenance()
        letter = only(pair.target)
        assert letter.overrides == before.overrides == Overrides(None, 3, parse_retry_policy(RULES))
        pair.target.redrive(letter.id)
        pair.target.run_maintenance()
        assert take(pair.source).overrides == before.overrides
