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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Anywhere in a key.
_SURE = _words(
    "authorization backupcode clientassertion codeverifier cookie credential mnemonic passcode passphrase passwd "
    "password recoverycode recoveryphrase secret securityanswer seedphrase "
    "contrasena kennwort motdepasse palavrapasse passwort senha wachtwoord"
)
_SURE_ABROAD = _words("contraseña hasło heslo lösenord şifre пароль 密码 密碼 パスワード 비밀번호")
# As one of its words.
_SURE_WORDS = _words("passkey passw psw pswd pw pwd")
_LIKELY_WORDS = _words(
    "apitoken auth bearer creds csrf jsessionid jwt phpsessid sas sessid session sessionid token xsrf"
)
_MAYBE_WORDS = _words("appid hmac saml sid sig sign signature tokens")
_CODE_WORDS = _words("2fa cav2 csc cvc cvc2 cvv cvv2 mfa otp pin ssn tan totp")
_KINDS_OF_CODE = _words(
    "access auth authentication authorization confirm confirmation device entry login mfa one otp passcode reset "
    "security sms time totp verification verify 2fa"
)
# Which keys open something, `signing_key`, and which only find something, `partition_key`. Others may be either.
_OPENING = _words(
    "access admin api auth cipher crypt crypto decryption deploy encrypt encryption fernet gpg hmac jwt licence "
    "license master pgp private prv recovery rsa secret shared sign signing ssh ssl tls wallet webhook"
)
_FINDING = _words(
    "aggregate business cache composite correlation dedup dedupe deduplication event foreign group hash i18n "
    "idempotence idempotency index item job lookup message natural object order partition primary public publishable "
    "range request routing row s3 search sort storage surrogate task trace translation unique"
)
# What is said about a secret is none: `password_changed_at`, `token_type`, `session_timeout`, `has_password`.
_ABOUT = _words(
    "accepted age alg algo algorithm arn at attempts audience banner chars class column complexity config configured "
    "consent count created date days description disabled enabled encoding endpoint error errors exists expired "
    "expires expiration expiry field fields file filename format group header hint host hours in index invalid issuer "
    "kind label len length level lifetime limit link lock manager max message method min minutes missing mode module "
    "ms name names needed number of ok on option page path policy position present prompt provider proxy ref "
    "reference required reset retries role rotated rotation rule rules scheme scope scopes sec seconds secs set size "
    "source state status store strategy strength time timeout title ttl type types uri url usage used user username "
    "valid validator verified version"
)
_ASKED = _words(
    "allow allows can count enable forgot forgotten has have invalid is max min missing need needs no num number "
    "require required requires show total update use uses without"
)
# `compass` has a word in it that it does not mean; a pass of these kinds opens nothing but a gate.
_OTHER_PASSES = _words(
    "boarding bus by bypass com compass day encompass first guest hall high last low one over sea season second "
    "single ski surpass tres trespass two under"
)
HINTS = tuple(sorted(_SURE | _SURE_ABROAD | _SURE_WORDS | _LIKELY_WORDS | _MAYBE_WORDS | _CODE_WORDS))
HINTS += ("pass", "key", "code", "assertion", "phrase", "answer")
"""A text in small letters that has none of these has no key of a secret."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")


def words_of_key(key: str) -> tuple[str, ...]:
    """The words of a key in small letters: `X-Api-Key` and `xApiKey` have the same."""
    return tuple(word for word in _SEPARATOR.split(_HUMP.sub("_", key).lower()) if word)


@lru_cache(maxsize=4096)
def secrecy_of(key: str) -> Secrecy:
    """What the name alone says of what stands under it."""
    if len(key) > MAX_KEY_CHARS:
        return Secrecy.NONE
    if not key.isascii() and any(word in key.lower() for word in _SURE_ABROAD):
        return Secrecy.SURE
    words = words_of_key(key)
    if not words or (len(words) > 1 and (words[-1] in _ABOUT or words[0] in _ASKED)):
        return Secrecy.NONE
    joined = "".join(words)
    if any(word in joined for word in _SURE) and not joined.startswith("secretar"):
        return Secrecy.SURE
    return max(_of_words(words, joined), _of_key(words, joined), _of_code(words), _of_pass(words))


def _of_words(words: tuple[str, ...], joined: str) -> Secrecy:
    if not _SURE_WORDS.isdisjoint(words):
        return Secrecy.SURE
    if not _LIKELY_WORDS.isdisjoint(words) or joined.endswith(("token", "sessionid")):
        return Secrecy.LIKELY
    return Secrecy.NONE if _MAYBE_WORDS.isdisjoint(words) else Secrecy.MAYBE


def _of_key(words: tuple[str, ...], joined: str) -> Secrecy:
    """`api_key`, `apikey` and `APIKEY_PROD` are sure, `app_key` may be one; not `key`, `monkey` or `partition_key`."""
    if any(kind + "key" in joined for kind in ("api", "access", "private", "secret", "encryption", "signing")):
        return Secrecy.SURE
    kinds = {before for before, word in pairwise(words) if word in ("key", "keys")}
    if not _OPENING.isdisjoint(kinds):
        return Secrecy.SURE
    return Secrecy.MAYBE if kinds and _FINDING.isdisjoint(words) else Secrecy.NONE


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
