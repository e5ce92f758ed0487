"""Names of secrets: keys of tables, headers, options and variables, regardless of how their words are joined."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

MAX_KEY_CHARS = 256
"""The maximum length of a key that is checked."""


class Secrecy(IntEnum):
    """The probability that the value of a key is a secret."""

    NONE = 0
    CODE = 1
    """Digits are a secret: a PIN, a one-time password, the number on the back of a card."""
    MAYBE = 2
    """Only random values are secrets."""
    LIKELY = 3
    """Any text is a secret; a number is a count."""
    SURE = 4
    """Any value is a secret, except a count, a path or a description."""
    NAMED = 5
    """Any value is a secret: a rule of a queue names the key."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Anywhere in a key.
_SURE = _words(
    "backupcode clientassertion codeverifier credential mnemonic passcode passphrase passwd password recoverycode "
    "recoveryphrase secret securityanswer seedphrase "
    "contrasena kennwort motdepasse palavrapasse passwort senha wachtwoord"
)
_SURE_ABROAD = _words("contraseña hasło heslo lösenord şifre пароль 密码 密碼 パスワード 비밀번호")
# As one of the words of a key.
_LIKELY_WORDS = _words("apitoken creds jsessionid jwt phpsessid sessid sessionid token")
_SURE_WORDS = _words("passkey passw psk psw pswd pw pwd")
# As the last word. Before another word they only qualify it: `cookie_domain`, `session_speaker`.
_SURE_LAST = _words("authorization cookie cookies")
_LIKELY_LAST = _words("auth bearer csrf sas session xsrf")
_MAYBE_WORDS = _SURE_LAST | _LIKELY_LAST | _words("appid authorizations hmac saml sig sign signature tokens")
_CODE_WORDS = _words("2fa cav2 csc cvc cvc2 cvv cvv2 mfa otp pin ssn tan totp")
_KINDS_OF_CODE = _words(
    "access auth authentication authorization confirm confirmation device entry login mfa one otp passcode reset "
    "security sms time totp verification verify 2fa"
)
# Kinds of keys that grant access, `signing_key`, and that only identify data, `partition_key`. Others may be either.
_OPENING = _words(
    "access admin api auth authorization cipher cookie crypt crypto decryption deploy encrypt encryption fernet gpg "
    "hmac jwt licence license master pgp private prv recovery rsa secret session shared sign signing ssh ssl tls "
    "wallet webhook"
)
_FINDING = _words(
    "aggregate asset blob business cache column composite config correlation dedup dedupe deduplication doc "
    "document entity event feature file filter folder foreign group hash i18n idempotence idempotency image index "
    "issue item job label lock lookup map message metric natural object order param parent partition primary "
    "project public publishable range record redis ref report request resource routing row s3 search shard sort "
    "storage stream surrogate table tag task topic trace translation unique upload"
)
# Attributes of a secret are no secrets: `password_changed_at`, `token_type`, `session_timeout`, `has_password`.
_ABOUT = _words(
    "accepted action address age alg algo algorithm alias amount analyzer arn at attempt audience backend banner "
    "bits bucket budget bus change changed channel char character checker class column command complexity config "
    "configured consent count counter created date day decimals description details dir directory disabled domain "
    "duration enabled encoder encoding encryption endpoint engine entropy error event exists expiration expired "
    "expires expiry factory field file filename fingerprint flag flow form format found generator group handler "
    "hasher header help helper hint history holder host hour image in index info interval invalid issuer kind label "
    "language last last4 layout len length level lifetime limit link loader location lock manager mapping max "
    "mechanism menu message meter method middleware min minute missing mode module mount ms name needed notice "
    "notification number of ok on only option origin owner page path pattern placeholder plugin policy pool "
    "position preference prefix present price priority prompt properties property protocol provider proxy py quota "
    "rate reason ref reference regex region request required requirement reset resolver resource retries role "
    "rotated rotation route rule samesite scan schema scheme scope score screen sec second section selector "
    "serializer set setting site size sock source standard start state status stdin step store strategy strength "
    "style subject suffix symbol tag template theme threshold time timeout title topic total transfer ttl type unit "
    "uri url usage use used user username valid validator variant vendor verified version warning window"
)
_ASKED = _words(
    "allow allows ask can count enable forgot forgotten has have invalid is max min missing need needs no num "
    "number require required requires show total update use uses without"
)
# `compass` contains a word with another meaning; a pass of these kinds, such as a boarding pass, is no password.
_OTHER_PASSES = _words(
    "ask askpass boarding bus by bypass com compass day encompass first guest hall high last low one over sea "
    "season second single ski surpass tres trespass two under"
)
HINTS = tuple(sorted(_SURE | _SURE_ABROAD | _SURE_WORDS | _LIKELY_WORDS | _MAYBE_WORDS | _CODE_WORDS))
HINTS += ("pass", "sid", "key", "code", "assertion", "phrase", "answer")
"""Parts of names: a lower-case text without any of these has no key of a secret."""
# These contain a word with another meaning too.
_OTHER_WORDS = re.compile("secretar(?:y|iat)|secretion|secrets?manager|existingsecret|passwordless")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")
# `token_2`, `password_v2` and `token_prod` are a token, a password and a token.
_VARIANT = re.compile(
    r"v?\d+|[a-z]|value|raw|plain|string|text|data|content|json|base64|hash|hashed|encoded|encrypted"
    r"|old|new|current|previous|next|backup|dev|test|staging|prod|production|live"
)


def words_of_key(key: str) -> tuple[str, ...]:
    """Return the words of a key in lower case: `X-Api-Key` and `xApiKey` have the same."""
    return tuple(word for word in _SEPARATOR.split(_HUMP.sub("_", key).lower()) if word)


@lru_cache(maxsize=4096)
def secrecy_of(key: str) -> Secrecy:
    """Return the secrecy of a value by its name alone."""
    if len(key) > MAX_KEY_CHARS:
        return Secrecy.NONE
    if not key.isascii() and any(word in key.lower() for word in _SURE_ABROAD):
        return Secrecy.SURE
    words = words_of_key(key)
    while len(words) > 1 and _VARIANT.fullmatch(words[-1]):
        words = words[:-1]
    if not words or (len(words) > 1 and (describes(words[-1]) or words[0] in _ASKED)):
        return Secrecy.NONE
    joined = _OTHER_WORDS.sub("", "".join(words))
    found = max(_of_words(words, joined), _of_key(words, joined), _of_pass(words))
    if found <= Secrecy.MAYBE and _is_code(words):
        return Secrecy.CODE
    return min(found, Secrecy.MAYBE) if _is_of_something_else(words, joined) else found


def _is_of_something_else(words: tuple[str, ...], joined: str) -> bool:
    """Return whether a key is about a secret: `secret_id`, `password_reset_email`. A random value may still be one."""
    if words[-1] == "id":
        return not joined.endswith("sessionid")
    return len(words) > 2 and describes(words[-2]) and secrecy_of(words[-1]) is Secrecy.NONE


def describes(key: str) -> bool:
    """Return whether the value of a key describes something: its name, its length, its location."""
    last = (words_of_key(key) or ("",))[-1]
    return last in _ABOUT or last.removesuffix("s") in _ABOUT


def _of_words(words: tuple[str, ...], joined: str) -> Secrecy:
    last = words[-1]
    if last in _SURE_LAST or not _SURE_WORDS.isdisjoint(words):
        return Secrecy.SURE
    if any(word in joined for word in _SURE):
        return Secrecy.SURE
    if last in _LIKELY_LAST or not _LIKELY_WORDS.isdisjoint(words) or joined.endswith(("token", "sessionid")):
        return Secrecy.LIKELY
    # `sid` is a session id; `message_sid` is no secret.
    is_session = last == "sid" and (words[:-1] or ("session",))[-1] in ("connect", "session")
    return Secrecy.MAYBE if is_session or not _MAYBE_WORDS.isdisjoint(words) else Secrecy.NONE


def _of_key(words: tuple[str, ...], joined: str) -> Secrecy:
    """Return SURE for `api_key`, `apikey` and `APIKEY_PROD`, MAYBE for `app_key`, NONE for `key`, `partition_key`."""
    if any(kind + "key" in joined for kind in ("api", "access", "private", "secret", "encryption", "signing")):
        return Secrecy.SURE
    kinds = {before for before, word in pairwise(words) if word in ("key", "keys")}
    if not _OPENING.isdisjoint(kinds):
        return Secrecy.SURE
    return Secrecy.MAYBE if kinds and _FINDING.isdisjoint(words) else Secrecy.NONE


def _is_code(words: tuple[str, ...]) -> bool:
    is_kind = len(words) > 1 and words[-1] in ("code", "codes") and words[-2] in _KINDS_OF_CODE
    return is_kind or not _CODE_WORDS.isdisjoint(words)


def _of_pass(words: tuple[str, ...]) -> Secrecy:
    """Return SURE for `db_pass` and `PGPASS`, LIKELY for `pass`, NONE for `boarding_pass`, `compass`, `pass_rate`."""
    last = words[-1]
    is_other = last in _OTHER_PASSES or (len(words) > 1 and words[-2] in _OTHER_PASSES)
    if is_other or not last.endswith(("pass", "pwd")):
        return Secrecy.NONE
    return Secrecy.LIKELY if words == ("pass",) else Secrecy.SURE
