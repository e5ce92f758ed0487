"""No address is shown with its password, whatever the password, the scheme, or the mistake in it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from redrive import App, connect
from redrive.cli.main import redrive
from redrive.cli.store_target import StoreTarget
from redrive.client.http_transport import Endpoint
from redrive.config.config import StoreOptions
from redrive.errors import InvalidInput, RedriveError
from redrive.model.url import redact_url, strip_password
from redrive.stores.redis import redis_client
from redrive.worker.ipc import WorkerLaunch, ZygoteSetup

SCHEMES = (
    *("postgresql", "postgres", "redis", "rediss", "valkey", "redis+cluster", "unix", "sqlite", "memory", "http"),
    *("postgresql+psycopg", "mysql", "amqp", "redis+sentinel", "POSTGRESQL", "ftp"),
)
FORMS = (
    "{scheme}://{user}:{password}@127.0.0.1:1/db",
    "{scheme}://{user}:{password}@127.0.0.1:1/db?schema=x&password={password}",
    "{scheme}://127.0.0.1:1/db?user={user}&password={password}",
    "{scheme}://127.0.0.1:1/db?password={password}#{password}",
    "{scheme}://:{password}@127.0.0.1:1,127.0.0.2:1/0",
    "{scheme}://:{password}@127.0.0.1:1,{scheme}://:{password}@127.0.0.2:1/0",
    "{scheme}://:{password}@/tmp/no.sock",
    "{scheme}://{user}:{password}@[::1:1/db",
    "{scheme}://{user}:{password}@127.0.0.1:port/db",
    "{scheme}:///{user}:{password}@127.0.0.1/db",
    "{scheme}:/{user}:{password}@127.0.0.1/db",
    "{scheme}//{user}:{password}@127.0.0.1/db",
    "{user}:{password}@127.0.0.1/db",
    "host=127.0.0.1 port=1 user={user} password={password}",
    " {scheme}://{user}:{password}@127.0.0.1:1/db ",
)
CHARACTERS = st.one_of(st.sampled_from("@/:?#&=%+,;[]{}$ \\'\"~ü℀"), st.characters(codec="utf-8", min_codepoint=33))


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Redis is not tried for a second each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_client, "RETRY_SECONDS", 0.0)
        yield


MARK = "Zq7"
"""In every password, at any place, so that a part that is shown is seen too."""


@st.composite
def addresses(draw: st.DrawFn) -> str:
    """An address with a password that has the mark in it."""
    password = draw(st.text(CHARACTERS, max_size=8)) + MARK + draw(st.text(CHARACTERS, min_size=1, max_size=8))
    form, scheme = draw(st.sampled_from(FORMS)), draw(st.sampled_from(SCHEMES))
    assume(scheme != "sqlite" or "{scheme}:///" not in form)  # the whole of it is the path of a file
    written = draw(st.sampled_from([password, quote(password), quote(password, safe="")]))
    return form.format(scheme=scheme, user="ann", password=written)


def told(address: str) -> str:
    """All that is said of an address that cannot be opened: the error, its traceback, and what a terminal shows."""
    try:
        connect(address, maintenance=False, create_if_missing=False).close()
    except RedriveError as error:
        shown = CliRunner().invoke(redrive, ["doctor", "--url", address])
        frames = [line for line in traceback.format_exception(error) if not line.startswith("  File")]
        return f"{error} {error!r} {vars(error)} {''.join(frames)} {shown.output} {shown.stderr}"
    return ""


def printed(address: str) -> str:
    """Whatever holds an address, as it prints itself."""
    values = (
        StoreTarget(address, "default", "--url", "token"),
        StoreOptions(address, stores={"other": address}),
        Endpoint(address, "default", "token"),
        ZygoteSetup("jobs:app", (), address),
        WorkerLaunch("jobs:app", url=address),
        App(address).store_url,
        redact_url(address),
    )
    return " ".join(map(repr, values))


@given(addresses())
def test_no_message_has_the_password_of_an_address(address: str) -> None:
    assert MARK not in told(address)
    assert MARK not in printed(address)


@pytest.mark.parametrize("password", ["hunter2hunter2", "hun@ter2", "hunt/er2", "hunt:er2", "1?hunter2", "8080/hunter"])
def test_no_scheme_and_no_mistake_shows_a_password(password: str) -> None:
    for scheme in SCHEMES:
        for form in FORMS:
            address = form.format(scheme=scheme, user="ann", password=password)
            if scheme == "sqlite" and "{scheme}:///" in form:
                continue
            with pytest.raises(RedriveError) as refused:
                connect(address, maintenance=False, create_if_missing=False).close()
            text = f"{''.join(traceback.format_exception_only(refused.value))} {vars(refused.value)} {printed(address)}"
            for secret in (password, re.split("[@/:?]", password)[-1]):
                assert secret not in text, address


@given(addresses())
def test_address_that_is_passed_on_has_no_password(address: str) -> None:
    assert MARK not in (strip_password(address) or "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:pass@db.example.com/jobs", "postgresql://ann:[redacted]@db.example.com/jobs"),
        ("postgresql://ann:p@ss@db/jobs?schema=x", "postgresql://ann:[redacted]@db/jobs?schema=x"),
        ("postgresql://ann@db:5432,db2:5432/jobs", "postgresql://ann@db:5432,db2:5432/jobs"),
        ("postgresql://ann:${REDRIVE_PW}@${REDRIVE_HOST}/jobs", "postgresql://ann:[redacted]@${REDRIVE_HOST}/jobs"),
        ("postgresql+psycopg://ann:pass@db", "postgresql+psycopg://:[redacted]@db"),
        ("redis://:pass@host:6379/0", "redis://:[redacted]@host:6379/0"),
        ("redis://pass@host", "redis://[redacted]@host"),
        ("redis://h/0?password=pass&db=1", "redis://h/0?db=1&…"),
        ("unix:///run/redis.sock?db=0", "unix:///run/redis.sock?db=0"),
        ("sqlite:////home/ann@example/my jobs.db", "sqlite:////home/ann@example/my jobs.db"),
        ("memory://", "memory://"),
        ("http://[::1]:7272/queues", "http://[::1]:7272/queues"),
        ("mysql://host", "mysql://host"),
        ("postgresql://ann:p?ss@db/jobs", "postgresql://…"),
        ("postgresql://ann:pass", "postgresql://…"),
        ("postgresql:ann:pass@db", "postgresql:…"),
        ("ann:pass@db", "…"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_what_is_harmless_is_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize("url", [b"postgresql://u:hunter2@h", 7, None])
def test_of_what_is_no_text_the_kind_is_shown(url: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        connect(url)  # type: ignore[arg-type]
    assert f"not {type(url).__name__}" in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://ann:p@ss@db/x", "postgresql://ann:p/ss@db/x", "redis://:p/ss@db/0"])
def test_password_that_must_be_encoded_is_told_with_how(url: str) -> None:
    with pytest.raises(InvalidInput, match="write @ as %40"):
        connect(url)


def test_password_of_a_proxy_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("http://ann:hunter2@proxy:port", "ann:hunter2@proxy", "hunter2://ann:hunter2@proxy"):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(InvalidInput) as refused:
            connect("http://server.invalid:7272")
        assert "hunter2" not in "".join(traceback.format_exception(refused.value))
