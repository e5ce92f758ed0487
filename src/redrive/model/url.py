"""Redacted addresses of stores and servers, for every message, log line and `repr`.

Only parts that are known to be harmless are shown. If the parts of an address cannot be separated, because a password
contains a `?` or the host is missing, only the scheme is shown.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from redrive.model.redact import redact_text
from redrive.model.secret_patterns import REDACTED

ENCODED = "in a user or password, write @ as %40, / as %2F, : as %3A, ? as %3F and # as %23"
"""The advice for an address that cannot be parsed."""
SERVER_SCHEMES = ("http", "https")
"""The schemes of a Redrive server."""
MAX_SHOWN_CHARS = 200
MAX_READ_CHARS = 4_096
"""The maximum length of an address that is parsed; of a longer one only the scheme is shown."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})(:(?://)?)")
_SCHEMES = (
    "http",
    "https",
    "memory",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "sqlite",
    "unix",
    "valkey",
    "valkeys",
)
_WITH_USERS = ("postgres", "postgresql", "redis", "rediss", "valkey", "valkeys")
"""The schemes whose users are shown: for others, the user may be a secret."""
_VARIABLE = r"\$\{\w+\}"
_HOST = rf"(?:\[[\w:.%]*\]|(?:[\w.%-]|{_VARIABLE})*)(?::(?:\d{{1,5}}|{_VARIABLE})?)?"
_PARTS = re.compile(
    rf"(?:(?P<user>(?:[\w.~%+-]|{_VARIABLE}){{0,64}}|[^?#:]*)(?P<password>:[^?#]*)?(?P<at>@))?"
    rf"(?P<place>{_HOST}(?:,{_HOST})*(?:/(?:[\w./~%+-]|{_VARIABLE})*)?)"
    r"(?:\?(?P<query>[^@#]*))?"
)
_FILE = re.compile(r"(?P<place>/(?!.*:.*@)[^?#]*)(?:\?(?P<query>[^@#]*))?", re.DOTALL)
_PLAIN = re.compile(r"[\w./ -]*")
"""The path of a file, or a word, without a scheme."""
_VALUE = re.compile(r"[\w.,:/~%+-]*")
_HARMLESS = frozenset(
    (
        *("schema", "prefix", "wait_replicas"),
        *("application_name", "channel_binding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "port"),
        *("sslmode", "sslrootcert", "target_session_attrs", "tcp_user_timeout", "user"),
        *("client_name", "db", "health_check_interval", "max_connections", "protocol", "socket_connect_timeout"),
        *("socket_keepalive", "socket_timeout", "ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "username"),
    )
)
"""The parameters whose values are shown."""


def redact_url(url: object) -> str:
    """Return an address without passwords and parameters that may be secret; only its scheme if that is unsafe."""
    if not isinstance(url, str):
        return type(url).__name__  # its own repr may show everything
    scheme, delimiter = _scheme_of(url)
    if not scheme:
        return url[:MAX_SHOWN_CHARS] if _PLAIN.fullmatch(url) else "…"
    rest = url.strip().removeprefix(scheme + delimiter)
    grammar = _FILE if scheme == "sqlite" and rest.startswith("/") else _PARTS
    parts = grammar.fullmatch(rest) if len(rest) <= MAX_READ_CHARS else None
    if delimiter != "://" or parts is None:
        return f"{scheme}{delimiter}{'…' if rest else ''}"
    shown = f"{scheme}://{_login(scheme, parts)}{parts['place']}{_query(parts['query'])}"
    return redact_text(shown)[:MAX_SHOWN_CHARS]


def strip_password(url: str) -> str | None:
    """Return an address without its password, to be passed on; None if another part may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    login, at, place = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=f"{login.partition(':')[0]}{at}{place}")) if at else url
    return plain if redact_url(plain) == plain else None


def _scheme_of(url: str) -> tuple[str, str]:
    """Return the scheme and its delimiter. Without `//`, only known schemes count: the word may be a user."""
    found = _SCHEME.match(url.strip())
    if found is None or (found[2] == ":" and found[1].lower() not in _SCHEMES):
        return "", ""
    return found[1], found[2]


def _login(scheme: str, parts: re.Match[str]) -> str:
    found = parts.groupdict()
    if not found.get("at"):
        return ""
    user, password = found["user"], found["password"]
    has_user = scheme in _WITH_USERS and re.fullmatch(r"[\w.~%+-]*", user) is not None
    if password is not None:
        return f"{user if has_user else ''}:{REDACTED}@"
    return f"{user}@" if not user or (has_user and scheme.startswith("postgres")) else f"{REDACTED}@"


def _query(query: str | None) -> str:
    if not query:
        return ""
    pairs = [pair.partition("=") for pair in query.split("&")]
    shown = [f"{name}={value}" for name, _, value in pairs if name in _HARMLESS and _VALUE.fullmatch(value)]
    return f"?{'&'.join(shown if len(shown) == len(pairs) else [*shown, '…'])}"
