"""Payloads are returned unchanged or refused; secrets are redacted for readers, never for workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive import Broker, Failure
from redrive.errors import InvalidInput, InvalidPayload, InvalidSetting, PayloadTooLarge
from redrive.model.redact_rules import redact_rules_from
from redrive.testing.conformance.actions import kill, places, take
from redrive.testing.conformance.suite import OpenBroker, Suite

MIB = 1024 * 1024


def nested(depth: int) -> list[Any]:
    """Return `depth` nested lists."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


EXACT: dict[str, Any] = {
    "2^70": 2**70,
    "-2^70": -(2**70),
    "2^53+1": 2**53 + 1,
    "2^63": 2**63,
    "2^64": 2**64,
    "a thousand digits": 10**999 + 7,
    "zero": 0,
    "minus zero": -0.0,
    "1.0 stays a float": 1.0,
    "smallest float": 5e-324,
    "largest float": 1.7976931348623157e308,
    "0.1": 0.1,
    "1e22": 1e22,
    "None": None,
    "True": True,
    "False": False,
    "empty text": "",
    "NUL in a text": "a\0b",
    "NUL alone": "\0",
    "NUL in a key": {"a\0b": 1},
    "emoji": "🦆👩‍👩‍👧‍👦",
    "astral key": {"𝒳": "𝒴"},
    "not normalised": "e\u0301 \u00e9",
    "line separators": "\u2028\u2029\x85\r\n",
    "control characters": "".join(map(chr, range(32))) + "\x7f",
    "noncharacters": "\ufffe\uffff\ufeff",
    "backslashes": '\\ " / \\u0041',
    "empty list": [],
    "empty dict": {},
    "empty key": {"": ""},
    "key order": {"b": 1, "a": 2, "c": {"z": 1, "y": 2}},
    "mixed": [1, "2", 3.5, None, True, {"a": [[], {}]}],
    "depth 100": nested(100),
    "wide": list(range(20_000)),
    "empty bytes": b"",
    "NUL bytes": b"\0\0\0",
    "all bytes": bytes(range(256)),
    "invalid UTF-8": b"\xff\xfe\xfd",
    "bytes that look like JSON": b'{"a": NaN}',
    "1 MiB exactly of bytes": b"x" * MIB,
    "1 MiB exactly of text": "x" * (MIB - 2),
}

REFUSED: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "NaN inside": {"a": [1, {"b": float("nan")}]},
    "lone surrogate": "a\ud800b",
    "lone surrogate inside": ["ok", {"k": "\udfff"}],
    "lone surrogate in a key": {"\ud83d": 1},
    "depth 101": nested(101),
    "depth 100,000": nested(100_000),
    "number as a key": {1: "a"},
    "None as a key": {None: "a"},
    "set": {1, 2},
    "object": object(),
    "function": len,
    "bytes inside": {"a": b"x"},
    "complex": 1j,
}

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)

each_example_meets_the_same_queue = settings(
    # The queue is empty again after every example, and the suite is one class inherited by many.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
    deadline=None,
)


def back(broker: Broker, value: Any) -> Any:
    """Return the value after a put, a read, a lease and completion."""
    receipt = broker.put("jobs", value)
    read = broker.get(receipt.id)
    lease = take(broker)
    assert (lease.payload, lease.content_type) == (read.payload, read.content_type)
    broker.complete(lease)
    return lease.value


class PayloadConformance(Suite):
    """Payloads are returned as they were put."""

    @pytest.mark.parametrize("value", EXACT.values(), ids=EXACT.keys())
    def test_value_comes_back_exactly(self, broker: Broker, value: Any) -> None:
        broker.create_queue("jobs")
        found = back(broker, value)
        # repr distinguishes 1 from 1.0 and True, -0.0 from 0.0, and different orders of keys.
        assert (type(found), repr(found)) == (type(value), repr(value))

    @given(value=JSON_VALUES)
    @each_example_meets_the_same_queue
    def test_any_json_value_comes_back_exactly(self, broker: Broker, value: Any) -> None:
        broker.create_queue("jobs")
        assert repr(back(broker, value)) == repr(value)

    @given(value=st.binary(max_size=2000))
    @each_example_meets_the_same_queue
    def test_any_bytes_come_back_exactly(self, broker: Broker, value: bytes) -> None:
        broker.create_queue("jobs")
        assert back(broker, value) == value

    def test_tuple_comes_back_as_a_list(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert back(broker, (1, (2, 3))) == [1, [2, 3]]

    def test_bytes_keep_the_content_type_they_were_put_with(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", b"\x01\x02", content_type="application/x-protobuf")
        lease = take(broker)
        assert (lease.value, lease.content_type) == (b"\x01\x02", "application/x-protobuf")

    def test_bytes_are_never_looked_into(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", b"{not json", content_type="application/json")
        assert broker.get(receipt.id).payload == b"{not json"

    @pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
    def test_value_that_json_cannot_hold_is_refused(self, broker: Broker, value: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidPayload, match=r"payload at \$"):
            broker.put("jobs", value)
        assert places(broker.stats("jobs")) == {}

    def test_refusal_says_where_the_problem_is(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidPayload) as refusal:
            broker.put("jobs", {"users": [{"name": "ada"}, {"name": float("nan")}]})
        assert refusal.value.path == "$.users[1].name"

    def test_container_that_holds_itself_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(InvalidPayload):
            broker.put("jobs", loop)

    @pytest.mark.parametrize("value", [b"x" * (MIB + 1), "x" * (MIB - 1)], ids=["bytes", "text"])
    def test_payload_over_the_limit_is_refused(self, broker: Broker, value: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(PayloadTooLarge, match=r"1,048,577 bytes and the limit is 1,048,576.*max_payload_size"):
            broker.put("jobs", value)
        assert places(broker.stats("jobs")) == {}

    def test_queue_may_have_a_lower_limit(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_payload_size=10)
        broker.put("jobs", b"x" * 10)
        with pytest.raises(PayloadTooLarge):
            broker.put("jobs", b"x" * 11)
        with pytest.raises(PayloadTooLarge):
            broker.put_many("jobs", [b"x", b"x" * 11])
        assert places(broker.stats("jobs")) == {"pending": 1}

    def test_queue_may_have_a_higher_limit(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_payload_size=2 * MIB)
        assert back(broker, b"x" * 2 * MIB) == b"x" * 2 * MIB

    def test_payload_is_unchanged_by_failure_death_move_and_redrive(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", retry={"attempts": 2}, dead_queue="morgue")
        broker.put("jobs", EXACT["mixed"], headers={"h": "🦆"})
        for _ in range(2):
            broker.fail(take(broker), "boom")
        dead = take(broker, "morgue")
        assert (dead.value, dict(dead.headers)) == (EXACT["mixed"], {"h": "🦆"})
        broker.release(dead, counted=False)
        broker.redrive(dead.id)
        lease = take(broker)
        assert (lease.value, dict(lease.headers), lease.content_type) == (
            EXACT["mixed"],
            {"h": "🦆"},
            "application/json",
        )

    @pytest.mark.parametrize("value", [float("nan"), "\ud800", object()], ids=["NaN", "surrogate", "object"])
    def test_result_that_json_cannot_hold_is_refused_and_the_item_stays_active(
        self, broker: Broker, value: Any
    ) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.complete(lease, result=value)
        assert broker.get(lease.id).status == "active"
        broker.complete(lease)


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
    """Return everything that a reader can see of an item and of its queue."""
    lines = b"".join(broker.export())
    return f"{broker.get(id)!r}{broker.find()!r}{broker.groups()!r}{broker.feed()!r}{lines!r}"


class RedactConformance(Suite):
    """The redaction of secrets: `connect(redact=…)`."""

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
