"""Redaction: what looks like a secret is hidden from whoever looks, and never from whoever works."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, Failure
from redrive.errors import InvalidInput, InvalidSetting
from redrive.model.redact_rules import redact_rules_from
from redrive.testing.conformance.deliveries import kill, take
from redrive.testing.conformance.suite import OpenBroker, Suite

SECRET = "hunter2-hunter2"
ORDER = {"user": "ann", "password": SECRET, "nested": [{"api_key": SECRET, "n": 1}]}


RULES = {"keys": ["iban"], "patterns": ["ACME-[a-z]{6,12}"], "allow": ["pin"]}
BAD_RULES: list[Any] = [
    "password",
    ["password"],
    {"key": ["iban"]},
    {"keys": "iban"},
    {"keys": [""]},
    {"keys": [7]},
    {"keys": ["---"]},
    {"keys": ["a"] * 101},
    {"allow": ["\ud800"]},
    {"patterns": ["("]},
    {"patterns": ["a{0,3}"]},
    {"patterns": [r"\d+"]},
    {"patterns": ["(a{1,9}){1,9}b"]},
    {"patterns": ["a" * 501]},
]


def seen(broker: Broker, id: str) -> str:
    """All that a person can see of an item and around it."""
    lines = b"".join(broker.export())
    return f"{broker.get(id)!r}{broker.find()!r}{broker.groups()!r}{broker.feed()!r}{lines!r}"


class RedactConformance(Suite):
    """`connect(redact=…)`."""

    def test_secrets_are_hidden_by_default(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", ORDER, headers={"Authorization": f"Bearer {SECRET}", "tenant": "a"})
        dead = broker.fail(take(broker), f"login failed: password={SECRET}")
        assert SECRET not in seen(broker, dead.id)
        item = broker.get(dead.id)
        assert item.value.keys() == ORDER.keys()
        assert (item.value["user"], item.value["nested"][0]["n"], item.headers["tenant"]) == ("ann", 1, "a")

    def test_secrets_in_every_text_of_a_failure_are_hidden(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        said = f"password={SECRET}"
        dead = kill(broker, error=Failure("E", said, traceback=said, locals=said))
        assert SECRET not in seen(broker, dead.id)
        failure = broker.get(dead.id, redacted=False).last_failure
        assert failure is not None
        assert (failure.text, failure.traceback, failure.locals) == (said, said, said)

    def test_workers_get_what_was_put(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", ORDER, headers={"Authorization": f"Bearer {SECRET}"})
        lease = take(broker)
        assert (lease.value, lease.headers) == (ORDER, {"Authorization": f"Bearer {SECRET}"})
        broker.redrive(broker.fail(lease, "boom").id)
        assert take(broker).value == ORDER

    def test_item_as_it_is_on_request(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, ORDER)
        assert broker.get(dead.id, redacted=False).value == ORDER

    def test_function_of_the_program_decides(self, open_broker: OpenBroker) -> None:
        def hide(kind: str, value: Any) -> Any:
            return {**value, "user": "X"} if kind == "payload" else value

        broker = open_broker(redact=hide)
        broker.create_queue("jobs")
        dead = kill(broker, {"user": "ann", "password": SECRET})
        assert broker.get(dead.id).value == {"user": "X", "password": SECRET}
        assert broker.find().items[0].value == {"user": "X", "password": SECRET}

    def test_redaction_can_be_turned_off(self, open_broker: OpenBroker) -> None:
        broker = open_broker(redact=False)
        broker.create_queue("jobs")
        dead = kill(broker, ORDER, error=f"password={SECRET}")
        item = broker.get(dead.id)
        assert item.value == ORDER
        assert item.last_failure is not None
        assert SECRET in item.last_failure.text

    def test_edit_works_on_the_payload_as_it_is(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, ORDER)
        broker.redrive(dead.id, edit={"user": "bob"})
        assert take(broker).value == {**ORDER, "user": "bob"}

    def test_what_has_no_secret_is_left_as_it_was_put(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for payload in ({"b": 1, "a": [1.5, None, "é"]}, "text", [1, 2], b"\0\xff", None):
            dead = kill(broker, payload)
            assert broker.get(dead.id) == broker.get(dead.id, redacted=False)

    def test_rules_of_a_queue_hide_and_show(self, broker: Broker) -> None:
        broker.create_queue("jobs", redact=RULES)
        dead = kill(broker, {"customerIban": "DE02", "pin": "1234", "n": 1}, error="see ACME-abcdef and iban=DE02")
        assert broker.get_queue("jobs").settings.redact == redact_rules_from(RULES)
        item = broker.get(dead.id)
        assert item.value == {"customerIban": "[redacted]", "pin": "1234", "n": 1}
        assert item.last_failure is not None
        assert item.last_failure.text == "see [redacted] and iban=[redacted]"
        for hidden in ("ACME-abcdef", "DE02"):
            assert hidden not in seen(broker, dead.id)
        assert broker.get(dead.id, redacted=False).value["customerIban"] == "DE02"

    def test_rules_of_one_queue_are_not_those_of_another(self, broker: Broker) -> None:
        broker.create_queue("jobs", redact=RULES)
        broker.create_queue("others")
        id = broker.put("others", {"iban": "DE02", "pin": "1234"}).id
        assert broker.get(id).value == {"iban": "DE02", "pin": "[redacted]"}

    def test_dead_letter_is_shown_by_the_rules_of_the_queue_in_which_it_died(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", redact=RULES, dead_queue="morgue")
        dead = kill(broker, {"iban": "DE02", "pin": "1234"}, error="see ACME-abcdef")
        assert dead.queue == "morgue"
        assert broker.get(dead.id).value == {"iban": "[redacted]", "pin": "1234"}
        assert "ACME-abcdef" not in seen(broker, dead.id)

    def test_rules_of_the_program_hold_in_all_queues(self, open_broker: OpenBroker) -> None:
        broker = open_broker(redact={"keys": ["iban"]})
        broker.create_queue("jobs", redact={"keys": ["bic"]})
        id = broker.put("jobs", {"iban": "DE02", "bic": "X", "n": 1}).id
        assert broker.get(id).value == {"iban": "[redacted]", "bic": "[redacted]", "n": 1}

    @pytest.mark.parametrize("rules", BAD_RULES, ids=lambda rules: repr(rules)[:60])
    def test_rules_that_cannot_be_used_are_refused(self, broker: Broker, rules: Any) -> None:
        with pytest.raises(InvalidSetting):
            broker.create_queue("jobs", redact=rules)
        assert broker.list_queues() == ()

    def test_redact_is_a_function_or_false(self, open_broker: OpenBroker) -> None:
        with pytest.raises(InvalidInput):
            open_broker(redact="yes")
