"""Names under which secrets stand: keys of tables, headers, options and variables, however their words are joined."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

MAX_KEY_CHARS = 256
"""A longer key is not looked at."""


class Secrecy(IntEnum):
    """How sure a key is to have a secret under it."""

    NONE = 0
    CODE = 1
    """Digits are a secret: a PIN, a one-time password, the number on the back of a card."""
    MAYBE = 2
    """Only what looks random is."""
    LIKELY = 3
    """Any text is a secret; a number is a count."""
    SURE = 4
    """Whatever it is."""


# Anywhere in a key.
_SURE = (
    "password", "passwd", "passphrase", "passcode", "passwort", "secret", "credential", "authorization", "mnemonic",
    "cookie", "kennwort", "motdepasse", "contrasena", "senha", "seedphrase", "recoveryphrase", "securityanswer", "backupcode", "recoverycode", "clientassertion", "codeverifier",
)  # fmt: skip
_ABROAD = ("contraseña", "пароль", "密码", "密碼", "パスワード", "비밀번호", "hasło", "şifre")
# As a word of a key, or as the end of one that is written in one piece, as in `PGPASS` and `authtoken`.
_SURE_WORDS = frozenset({"pwd", "pswd", "passw", "pw", "psw", "passkey"})
_LIKELY_WORDS = frozenset(
    ["apitoken", "auth", "bearer", "creds", "csrf", "jsessionid", "jwt", "phpsessid", "sas", "sessid", "session", "sessionid", "token", "tokens", "xsrf"]
)
_MAYBE_WORDS = frozenset(["appid", "hmac", "saml", "sid", "sig", "sign", "signature"])
_CODE_WORDS = frozenset(["2fa", "cav2", "csc", "cvc", "cvc2", "cvv", "cvv2", "mfa", "otp", "pin", "ssn", "tan", "totp"])
# Keys that open something, `signing_key`, and those that may only find something, `storage_key`.
_SURE_KEYS = frozenset(
    ["access", "admin", "api", "auth", "cipher", "crypt", "crypto", "decryption", "deploy", "encrypt", "encryption", "gpg", "hmac", "jwt", "licence", "license", "master", "pgp", "private", "prv", "recovery", "rsa", "secret", "shared", "sign", "signing", "ssh", "ssl", "tls", "wallet", "webhook"]
)
_MAYBE_KEYS = frozenset(
    ["account", "app", "application", "backup", "client", "consumer", "customer", "function", "host", "integration", "live", "merchant", "restricted", "root", "seed", "sender", "server", "service", "session", "storage", "stripe", "subscription", "write"]
)
_KINDS_OF_CODE = frozenset(
    ["access", "auth", "authentication", "authorization", "confirm", "confirmation", "device", "entry", "login", "mfa", "one", "otp", "passcode", "reset", "security", "sms", "time", "totp", "verification", "verify", "2fa"]
)
# What is said about a secret is none: `password_changed_at`, `token_type`, `session_timeout`, `has_password`.
_ABOUT = frozenset(
    ["accepted", "age", "alg", "algo", "algorithm", "arn", "at", "attempts", "audience", "auth_type", "banner", "chars", "class", "column", "complexity", "config", "configured", "consent", "count", "created", "date", "days", "description", "disabled", "enabled", "encoding", "endpoint", "error", "errors", "exists", "expired", "expires", "expiration", "expiry", "field", "fields", "file", "filename", "format", "group", "header", "hint", "host", "hours", "in", "index", "invalid", "issuer", "kind", "label", "length", "len", "level", "limit", "lifetime", "link", "lock", "manager", "max", "message", "method", "min", "minutes", "missing", "mode", "module", "ms", "name", "names", "needed", "number", "of", "ok", "on", "option", "page", "path", "policy", "position", "present", "prompt", "provider", "proxy", "ref", "reference", "required", "reset", "retries", "role", "rotation", "rule", "rules", "rotated", "scheme", "scope", "scopes", "seconds", "set", "size", "source", "state", "status", "store", "strength", "strategy", "sec", "secs", "time", "timeout", "title", "ttl", "type", "types", "uri", "url", "usage", "used", "user", "username", "valid", "validator", "verified", "version"]
)
_ASKED = frozenset(
    ["allow", "allows", "can", "count", "enable", "forgot", "forgotten", "has", "have", "invalid", "is", "max", "min", "missing", "need", "needs", "no", "num", "number", "require", "required", "requires", "show", "total", "update", "use", "uses", "user_has", "without"]
)
# `compass` and `tokenizer` have other words in them; a pass of these kinds opens nothing but a gate.
_OTHER_PASSES = frozenset(
    ["boarding", "bus", "by", "bypass", "com", "compass", "day", "encompass", "first", "guest", "hall", "high", "last", "low", "one", "over", "sea", "season", "second", "single", "ski", "surpass", "tres", "trespass", "two", "under"]
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")


def words_of_key(key: str) -> tuple[str, ...]:
    """The words of a key in small letters: `X-Api-Key` and `xApiKey` have the same."""
    return tuple(word for word in _SEPARATOR.split(_HUMP.sub("_", key).lower()) if word)


@lru_cache(maxsize=4096)
def secrecy_of(key: str) -> Secrecy:
    """What the name alone says of what stands under it."""
    words = words_of_key(key)
    if not key.isascii() and any(word in key.lower() for word in _ABROAD):
        return Secrecy.SURE
    if not words or len(key) > MAX_KEY_CHARS:
        return Secrecy.NONE
    if len(words) > 1 and (words[-1] in _ABOUT or words[0] in _ASKED):
        return Secrecy.NONE
    joined = "".join(words)
    if any(word in joined for word in _SURE) and not joined.startswith("secretar"):
        return Secrecy.SURE
    return max(_of_key(words, joined), _of_code(words), _of_pass(words), _of_words(words, joined))


def _of_words(words: tuple[str, ...], joined: str) -> Secrecy:
    if not _SURE_WORDS.isdisjoint(words):
        return Secrecy.SURE
    if not _LIKELY_WORDS.isdisjoint(words) or joined.endswith(("token", "sessionid")):
        return Secrecy.LIKELY
    return Secrecy.NONE if _MAYBE_WORDS.isdisjoint(words) else Secrecy.MAYBE


def _of_key(words: tuple[str, ...], joined: str) -> Secrecy:
    """`api_key`, `apikey`, `APIKEY_PROD`, `private.keys`; not `public_key`, `key`, `monkey` or `partition_key`."""
    if any(kind + "key" in joined for kind in ("api", "access", "private", "secret", "encryption", "signing")):
        return Secrecy.SURE
    kinds = {before for before, word in pairwise(words) if word in ("key", "keys")}
    if not _SURE_KEYS.isdisjoint(kinds):
        return Secrecy.SURE
    return Secrecy.NONE if _MAYBE_KEYS.isdisjoint(kinds) else Secrecy.MAYBE


def _of_code(words: tuple[str, ...]) -> Secrecy:
    is_code = len(words) > 1 and words[-1] in ("code", "codes") and words[-2] in _KINDS_OF_CODE
    return Secrecy.CODE if is_code or not _CODE_WORDS.isdisjoint(words) else Secrecy.NONE


def _of_pass(words: tuple[str, ...]) -> Secrecy:
    """`db_pass` and `PGPASS`; not `boarding_pass`, `compass` or `pass_rate`."""
    last = words[-1]
    is_other = last in _OTHER_PASSES or (len(words) > 1 and words[-2] in _OTHER_PASSES)
    if is_other or not last.endswith(("pass", "pwd")):
        return Secrecy.NONE
    return Secrecy.LIKELY if words == ("pass",) else Secrecy.SURE


HINTS = tuple(
    sorted(
        {
            *_SURE,
            *_ABROAD,
            *_SURE_WORDS,
            *_LIKELY_WORDS - {"tokens", "sessionid", "apitoken"},
            *_MAYBE_WORDS,
            *_CODE_WORDS,
        }
    )
    + ["pass", "key", "code"]
)
"""A text in small letters that has none of these has no key of a secret."""
