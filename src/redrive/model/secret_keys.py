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
    "backupcode clientassertion codeverifier credential mnemonic passcode passphrase passwd password recoverycode "
    "recoveryphrase secret securityanswer seedphrase "
    "contrasena kennwort motdepasse palavrapasse passwort senha wachtwoord"
)
_SURE_ABROAD = _words("contraseña hasło heslo lösenord şifre пароль 密码 密碼 パスワード 비밀번호")
# As one of its words.
_SURE_WORDS = _words("passkey passw psw pswd pw pwd")
# As the last of them. Before another one they only say of what kind that is: `cookie_domain`, `session_speaker`.
_SURE_LAST = _words("authorization authorizations cookie cookies")
_LIKELY_LAST = _words(
    "apitoken auth bearer creds csrf jsessionid jwt phpsessid sas sessid session sessionid token xsrf"
)
_MAYBE_WORDS = _SURE_LAST | _LIKELY_LAST | _words("appid hmac saml sig sign signature tokens")
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
    "aggregate asset blob business cache column composite config correlation dedup dedupe deduplication doc "
    "document entity event feature file filter folder foreign group hash i18n idempotence idempotency image index "
    "issue item job label lock lookup map message metric natural object order param parent partition primary "
    "project public publishable range record redis ref report request resource routing row s3 search shard sort "
    "storage stream surrogate table tag task topic trace translation unique upload"
)
# What is said about a secret is none: `password_changed_at`, `token_type`, `session_timeout`, `has_password`.
_ABOUT = _words(
    "accepted action address age alg algo algorithm alias amount analyzer arn at attempt audience backend banner "
    "bits bucket budget bus change changed channel char checker class column command complexity config configured "
    "consent count counter created date day decimals description details dir directory disabled domain duration "
    "email enabled encoder encoding endpoint engine entropy error event exists expiration expired expires expiry "
    "factory field file filename flag flow form format generator group handler hasher header helper hint history "
    "host hour image in index info interval invalid issuer kind label language last4 layout len length level "
    "lifetime limit link loader location lock manager mapping max mechanism menu message meter method middleware "
    "min minute missing mode module mount ms name needed notice notification number of ok on only option page path "
    "pattern placeholder plugin policy pool position preference prefix present price priority prompt properties "
    "property protocol provider proxy py queue quota rate reason ref reference regex region request required "
    "requirement reset resolver resource retries role rotated rotation route router rule samesite schema scheme "
    "scope score screen sec second section serializer service set setting size sock source start state status stdin "
    "step storage store strategy strength style subject suffix symbol table tag template theme threshold time "
    "timeout title topic total ttl type unit uri url usage used user username valid validator variant vendor "
    "verified version view warning window worker"
)
_ASKED = _words(
    "allow allows ask can count enable forgot forgotten has have invalid is max min missing need needs no num "
    "number require required requires show total update use uses without"
)
# `compass` has a word in it that it does not mean; a pass of these kinds opens nothing but a gate.
_OTHER_PASSES = _words(
    "ask askpass boarding bus by bypass com compass day encompass first guest hall high last low one over sea "
    "season second single ski surpass tres trespass two under"
)
HINTS = tuple(sorted(_SURE | _SURE_ABROAD | _SURE_WORDS | _MAYBE_WORDS | _CODE_WORDS))
HINTS += ("pass", "sid", "key", "code", "assertion", "phrase", "answer")
"""A text in small letters that has none of these has no key of a secret."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")
# `token_2`, `password_v2` and `token_prod` are a token, a password and a token.
_VARIANT = re.compile(
    r"v?\d+|[a-z]|value|raw|old|new|current|previous|next|backup|dev|test|staging|prod|production|live"
)


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
    while len(words) > 1 and _VARIANT.fullmatch(words[-1]):
        words = words[:-1]
    if not words or (len(words) > 1 and (describes(words[-1]) or words[0] in _ASKED)):
        return Secrecy.NONE
    joined = "".join(words)
    found = max(_of_words(words, joined), _of_key(words, joined), _of_pass(words))
    if found <= Secrecy.MAYBE and _is_code(words):
        return Secrecy.CODE
    # The id of a secret finds it; one that is made by a machine may be a secret itself, as in Vault.
    is_id = words[-1] == "id" and not joined.endswith("sessionid")
    return min(found, Secrecy.MAYBE) if is_id else found


def describes(key: str) -> bool:
    """Whether what stands under a key is said about something: its name, its length, where it is."""
    last = (words_of_key(key) or ("",))[-1]
    return last in _ABOUT or last.removesuffix("s") in _ABOUT


def _of_words(words: tuple[str, ...], joined: str) -> Secrecy:
    last = words[-1]
    if last in _SURE_LAST or not _SURE_WORDS.isdisjoint(words):
        return Secrecy.SURE
    if any(word in joined for word in _SURE) and not joined.startswith("secretar"):
        return Secrecy.SURE
    if last in _LIKELY_LAST or joined.endswith(("token", "sessionid")):
        return Secrecy.LIKELY
    # `sid` is that of a session; `message_sid` is no secret.
    is_session = last == "sid" and (words[:-1] or ("session",))[-1] in ("connect", "session")
    return Secrecy.MAYBE if is_session or not _MAYBE_WORDS.isdisjoint(words) else Secrecy.NONE


def _of_key(words: tuple[str, ...], joined: str) -> Secrecy:
    """`api_key`, `apikey` and `APIKEY_PROD` are sure, `app_key` may be one; not `key`, `monkey` or `partition_key`."""
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
    """`db_pass` and `PGPASS`; not `boarding_pass`, `compass` or `pass_rate`."""
    last = words[-1]
    is_other = last in _OTHER_PASSES or (len(words) > 1 and words[-2] in _OTHER_PASSES)
    if is_other or not last.endswith(("pass", "pwd")):
        return Secrecy.NONE
    return Secrecy.LIKELY if words == ("pass",) else Secrecy.SURE
