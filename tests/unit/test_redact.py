"""Redaction: what looks like a secret is hidden, and nothing else is touched."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import connect
from redrive.errors import InvalidInput
from redrive.model.limits import MIB
from redrive.model.redact import REDACTED, Redactor, may_hold_secrets, redact_secrets, redact_text
from redrive.model.redact_rules import RedactRules

SECRET_KEYS = [
    *("password", "Password", "db_password", "userPassword", "passwd", "pwd", "passphrase", "secret", "client_secret"),
    *(
        "clientSecret",
        "token",
        "access_token",
        "accessToken",
        "refreshToken",
        "api_key",
        "apikey",
        "apiKey",
        "X-Api-Key",
    ),
    *("Authorization", "proxy-authorization", "cookie", "Set-Cookie", "private_key", "PRIVATE-KEY", "credentials"),
    *("aws_secret_access_key", "session_id", "sessionId", "session", "auth", "jwt"),
]
OTHER_KEYS = ["author", "tokenizer", "key", "name", "sessions", "monkey", "compass", "keyboard", "boarding_pass"]
SECRET_TEXTS = [
    ("Authorization: Bearer abc.def-123456", "abc.def"),
    ("sent Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJ"),
    ("the token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl was refused", "eyJ"),
    (f"Basic {base64.b64encode(b'ann:open sesame 1').decode()}", "YW5u"),
    ("postgresql://ann:hunter2@db.example/jobs is gone", "hunter2"),
    ("connect(user='ann', password='hunter2')", "hunter2"),
    ('{"password": "hunter2", "user": "ann"}', "hunter2"),
    ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
    ("login failed: user=ann&password=hunter2&x=1", "hunter2"),
    ("api_key: 0123456789", "0123456789"),
    ("AKIAIOSFODNN7EXAMPLE is not allowed", "AKIA"),
    ("redrive_3f9a1c02_" + "5b1e0c" * 8 + " was refused", "5b1e0c"),
    ("remote: ghp_0123456789abcdefghijABCDEFGHIJ0123", "ghp_"),
    ("slack said no to xoxb-123456789012-abcdefghijkl", "xoxb"),
    ("sk_live_0123456789abcdef", "sk_live"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "MIIE"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE cut of", "MIIE"),
    ("access_token=abcdef0123456789", "abcdef"),
]
PLAIN_TEXTS = [
    "KeyError: 'password'",
    "Basic authentication failed for the bearer of this message",
    "Unexpected token: } in JSON at position 3",
    "token: expired",
    "see https://example.com/a@b and mailto:ann@example.com",
    "    password = os.environ['DB_PASSWORD']",
    "the session ended",
    "",
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text() | st.sampled_from(SECRET_KEYS), children),
    max_leaves=20,
)
fragments = st.lists(
    st.sampled_from([text for text, _ in SECRET_TEXTS])
    | st.sampled_from(
        ["password=", "token: ", "://", "@", ":", '"', "'", "\\", " ", "Bearer ", "basic ", REDACTED, "1"]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_what_stands_under_a_secret_key_is_hidden(key: str) -> None:
    assert may_hold_secrets(key)  # or the quick look would pass it over
    assert redact_secrets("payload", {"a": [{key: "x", "b": 1}]}) == {"a": [{key: REDACTED, "b": 1}]}
    assert redact_secrets("headers", {key: "x"}) == {key: REDACTED}


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_other_keys_are_left_alone(key: str) -> None:
    value = {key: "x"}
    assert redact_secrets("payload", value) is value


def test_numbers_are_secrets_only_where_the_key_leaves_no_doubt() -> None:
    value = {"tokens": 512, "token": 3, "session": 7, "auth": True, "password": None, "secret": ""}
    assert redact_secrets("payload", value) is value
    assert redact_secrets("payload", {"password": 1234}) == {"password": REDACTED}


def test_what_a_rule_names_is_hidden_whatever_it_is() -> None:
    named = {
        "customer": {"name": "Ann"},
        "home": "/home/ann",
        "age": 41,
        "born": "2026-11-17 08:00",
        "list": [{"url": "x"}],
    }
    redact = Redactor(RedactRules(keys=tuple(named)))
    assert redact("payload", named) == dict.fromkeys(named, REDACTED)
    assert redact_secrets("payload", named) is named


@pytest.mark.parametrize(("text", "secret"), SECRET_TEXTS)
def test_what_has_the_form_of_a_secret_is_hidden(text: str, secret: str) -> None:
    shown = redact_text(text)
    assert secret not in shown
    assert REDACTED in shown
    assert redact_secrets("payload", text.encode()) == shown.encode()


@pytest.mark.parametrize("number", ["30569309025904", "378282246310005", "4111111111111111"])
def test_number_of_a_card_is_hidden_where_it_stands_alone(number: str) -> None:
    assert redact_secrets("payload", [number, int(number)]) == [REDACTED, REDACTED]


def test_the_rest_of_a_text_stays() -> None:
    assert redact_text("postgres://ann:x@db/jobs?a=1 failed") == f"postgres://ann:{REDACTED}@db/jobs?a=1 failed"
    assert redact_text('{"password": "a b", "c": 1}') == f'{{"password": "{REDACTED}", "c": 1}}'
    assert redact_text("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY----- y") == f"{REDACTED} y"


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_what_holds_no_secret_is_not_changed(text: str) -> None:
    assert redact_text(text) == text


@given(fragments)
def test_texts_are_redacted_once_and_for_all(text: str) -> None:
    shown = redact_text(text)
    assert redact_text(shown) == shown


@given(json_values)
def test_values_are_redacted_once_and_for_all(value: Any) -> None:
    shown = redact_secrets("payload", value)
    assert redact_secrets("payload", shown) == shown


@given(st.binary())
def test_bytes_come_out_as_they_went_in_where_they_hold_no_secret(data: bytes) -> None:
    shown = redact_secrets("payload", b"\xff" + data)
    assert isinstance(shown, bytes)
    assert shown == b"\xff" + data or REDACTED.encode() in shown.replace(b"\0", b"")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"caf\xe9 password=hunter2 \xff", b"caf\xe9 password=[redacted] \xff"),
        (b"\x82\xa4user\xa3ann\xa8password\xa7hunter2", b"\x82\xa4user\xa3ann\xa8password\xa7[redacted]"),
        ("password=hunter2".encode("utf-16-le"), "password=[redacted]".encode("utf-16-le")),
        ("\ufeffpassword=hunter2".encode("utf-16-be"), "\ufeffpassword=[redacted]".encode("utf-16-be")),
    ],
)
def test_secrets_in_bytes_that_are_no_utf_8_are_hidden(data: bytes, shown: bytes) -> None:
    assert redact_secrets("payload", data) == shown


HOSTILE = [
    *("eyJ-", "password='", "://a:", "token", "bearer ", "-----BEGIN PRIVATE KEY-----", "a_", 'secret="\\', "x-token "),
    *("a=b ", 'name="password" ', "value='x' ", "('a', ", "<a>b</", "--a b", "mysql -p", "curl -u a:", "a:1:b:c:d\n"),
    *("4111 ", "password: a,b;c&d)e", "$1$", "login a password", "x\n  y input_value=", "Authorization: Digest a=b, "),
    *(
        "Cookie: ",
        "mnemonic: a ",
        "password=a.b.c.d",
        "token is ",
        "password=Secret(",
        "password=((((",
        "zip -Pa",
        "A_B ",
    ),
    *(
        "vault login -a ",
        "rabbitmqctl add_user a ",
        "htpasswd -b a b ",
        "sqlplus -a ",
        "gh secret set a -b ",
        "set --a ",
    ),
    *('("password: ")', "api_key b --value ", "set api_key ", "token=/a", "token=a-1.", "password:a:", "session_a_of "),
    *("token=a1/b.txt", "session_id=a1/b.txt", "pin=/a=", "otp=./a-", "cookie_id=/a="),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    """Eight times the text takes about eight times as long; were it the square, it would take 64 times as long."""
    small, large = (piece * (size // len(piece)) for size in (8_192, 65_536))
    limit = 30 * min(seconds(small) for _ in range(2)) + 0.1
    assert any(seconds(large) < limit for _ in range(2))


def seconds(text: str) -> float:
    begin = time.process_time()
    redact_text(text)
    return time.process_time() - begin


@pytest.mark.parametrize("text", ["a" * MIB, "password " * (MIB // 9), "{" * MIB, "4" * MIB], ids=lambda text: text[:8])
def test_text_of_a_mebibyte_is_read_in_bounded_time(text: str) -> None:
    assert seconds(text) < 60


def test_looking_is_redacted_and_leases_are_not() -> None:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs", keep_completed="1h")
        receipt = broker.put("jobs", {"password": "hunter2", "n": 1}, headers={"Authorization": "x"})
        (lease,) = broker.lease("jobs")
        assert (lease.value, lease.headers) == ({"password": "hunter2", "n": 1}, {"Authorization": "x"})
        broker.fail(lease, ValueError("no entry with password=hunter2"))
        seen = broker.get(receipt.id)
        assert (seen.value, seen.headers) == ({"password": REDACTED, "n": 1}, {"Authorization": REDACTED})
        assert "hunter2" not in repr(seen)
        for shown in (broker.find(), broker.groups(), broker.feed(), list(broker.export())):
            assert "hunter2" not in repr(shown)
        assert broker.get(receipt.id, redacted=False).value == lease.value
        assert broker.find(redacted=False).items[0].value == lease.value
        broker.redrive(receipt.id)
        (lease,) = broker.lease("jobs")
        assert lease.value == {"password": "hunter2", "n": 1}


def test_nothing_is_hidden_where_that_was_asked_for() -> None:
    with connect("memory://", maintenance=False, redact=False) as broker:
        broker.create_queue("jobs")
        assert broker.get(broker.put("jobs", {"password": "x"}).id).value == {"password": "x"}


def test_function_of_the_program_takes_the_place_of_the_default() -> None:
    kinds = set()

    def redact(kind: str, value: Any) -> Any:
        kinds.add(kind)
        return {"seen": value["password"]} if kind == "payload" else value

    with connect("memory://", maintenance=False, redact=redact) as broker:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", {"password": "x"}, headers={"a": "b"})
        broker.fail(broker.lease("jobs")[0], "no")
        assert broker.get(receipt.id).value == {"seen": "x"}
    assert kinds == {"payload", "headers", "text"}


@pytest.mark.parametrize("redact", [lambda kind, value: 1 / 0, lambda kind, value: object()])
def test_function_that_fails_hides_everything(redact: Any) -> None:
    with connect("memory://", maintenance=False, redact=redact) as broker:
        broker.create_queue("jobs")
        ids = [broker.put("jobs", value, headers={"a": "b"}).id for value in ({"c": 1}, b"d")]
        assert [broker.get(id).value for id in ids] == [REDACTED, REDACTED.encode()]
        assert [broker.get(id).headers for id in ids] == [{"a": REDACTED}] * 2


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"redact is a function .*a table of rules, or False"):
        connect("memory://", redact="yes")  # type: ignore[arg-type]
