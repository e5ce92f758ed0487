"""Secrets recognised by their form: tokens of services, private keys, passwords in URLs and commands, card numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

REDACTED = "[redacted]"
"""The replacement for a secret."""
_NOT_YET = r"(?!\[redacted\])"
_KEEP = rf"\g<1>{REDACTED}"


@dataclass(frozen=True)
class Form:
    """A form of secrets. `word` is searched first, which is fast; the pattern is tried only at its matches."""

    word: str
    expression: str
    shown: str
    flags: re.RegexFlag
    near: str
    """An expression for the text directly before or after the word, required by every match of the pattern."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern, compiled on first use: most programs never need most forms."""
        return re.compile(self.expression, self.flags)


def _form(word: str, pattern: str, shown: str = REDACTED, flags: re.RegexFlag = re.NOFLAG, *, near: str = "") -> Form:
    return Form(word, pattern, shown, flags, near)


def _tokens(prefixes: str, rest: str) -> list[Form]:
    """Return forms of tokens with these prefixes. Names in a program have lower-case letters only, tokens do not."""
    return [
        _form(
            prefix,
            rf"(?<![A-Za-z0-9]){re.escape(prefix)}(?=[a-z_-]{{0,64}}[0-9A-Z]){rest}",
            near=rf"(?<![A-Za-z0-9]{re.escape(prefix)})",
        )
        for prefix in prefixes.split()
    ]


_MARKED = r"(?:PRIVATE KEY(?: BLOCK)?|PGP MESSAGE|AGE ENCRYPTED FILE)"
_PORT = r"(?!\d{1,5}(?:[/?#\s\"',;)]|\Z))"
_HAS_USER = r"[^\s\"'<>@]{0,513}+@"
_HASHES = "1 2a 2b 2y 5 6 7 y apr1 argon2id argon2i argon2d pbkdf2 pbkdf2-sha256 pbkdf2-sha512 scrypt P$B H$B"
_AS_WRITTEN = (
    # A private key, to its end or to that of the text.
    _form(
        "-----BEGIN ",
        rf"-----BEGIN [A-Z ]{{0,40}}{_MARKED}-----[\s\S]*?(?:-----END [A-Z ]{{0,40}}{_MARKED}-----|\Z)",
    ),
    _form("PuTTY-User-Key-File", r"(PuTTY-User-Key-File)[\s\S]*?(?:Private-MAC: [0-9a-f]{1,128}|\Z)", _KEEP),
    # The password in a URL: up to the last @ before a slash, or to the first one after it.
    _form(
        "://",
        rf"(://[^\s/:@\"'<>]{{0,256}}+:){_NOT_YET}{_PORT}(?:[^\s/\"'<>]{{1,256}}@|[^\s\"'<>@]{{1,256}}@(?=[\w\[]))",
        rf"\g<1>{REDACTED}@",
        near=_HAS_USER,
    ),
    # A token as the user of a URL, and URLs that are secrets themselves.
    _form("://", r"(://)(?=[A-Za-z_-]{0,64}\d)[\w-]{20,256}+@", rf"\g<1>{REDACTED}@", near=_HAS_USER),
    _form("/services/", r"(/services/)T[A-Z0-9]{6,16}/B[A-Z0-9]{6,16}/[\w+-]{8,256}+", _KEEP),
    _form("hooks.slack.com/", r"(hooks\.slack\.com/[a-z]{1,16}/)(?!services/)[\w/+-]{8,256}+", _KEEP),
    _form("/webhooks/", r"(/webhooks/\d{6,24}/)[\w-]{16,256}+", _KEEP),
    _form("/webhook", r"(/webhook(?:b2)?/)[\w/@-]{48,512}+", _KEEP),
    _form("/IncomingWebhook/", r"(/IncomingWebhook/)[\w/-]{16,256}+", _KEEP),
    _form("/bot", r"(/bot)\d{5,16}:[\w-]{20,128}+", _KEEP),
    # JSON web tokens, and keys of services.
    _form("eyJ", r"(?<![\w-])eyJ[\w-]{8,8192}+\.[\w-]{2,8192}+(?:\.[\w-]{0,8192}+){0,3}"),
    # A token of a Redrive server; its id is shown.
    _form("redrive_", r"(\bredrive_[0-9a-f]{8}_)[0-9a-f]{40,512}+", _KEEP),
    *_tokens("AKIA ASIA ABIA ACCA LTAI AKID", r"[0-9A-Za-z]{12,32}+"),
    *_tokens("ghp_ gho_ ghu_ ghs_ ghr_ npm_ hf_ dop_v1_ doo_v1_ dor_v1_", r"[A-Za-z0-9]{16,512}+"),
    *_tokens("rubygems_ r8_ ntn_ sbp_ shpat_ shpss_ shpca_ shppa_ lin_api_", r"[A-Za-z0-9]{16,512}+"),
    *_tokens("CCIPAT_ EZAK EZTK dapi nfp_ figd_ rnd_", r"[\w-]{20,512}+"),
    *_tokens("github_pat_ glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- pypi-", r"[\w-]{16,512}+"),
    *_tokens("sk- pk-lf- xai- gsk_ pplx- tvly- glc_ glsa_ sntrys_ sntryu_ phx_ pul-", r"[\w-]{16,512}+"),
    *_tokens("PMAK- NRAK- dckr_pat_ dckr_oat_ tskey- pscale_tkn_ pscale_pw_", r"[\w.=-]{16,512}+"),
    *_tokens("ATATT3 ATCTT3 ATBB pat-na1- pat-eu1- AGE-SECRET-KEY-", r"[\w.=-]{16,512}+"),
    *_tokens("sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ whsec_", r"[\w/+=]{10,512}+"),
    *_tokens("sq0atp- sq0csp- GOCSPX- ya29. 1//0 hvs. hvb. hvr. dp.pt. dp.st. dp.ct.", r"[\w.-]{20,2048}+"),
    *_tokens("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xoxe. xapp-", r"[\w%/+=.-]{10,512}+"),
    *_tokens("AIza", r"[\w-]{30,64}+"),
    *_tokens("SG.", r"[\w-]{16,64}+\.[\w-]{16,128}+"),
    _form("key-", r"(?<![\w-])key-[0-9a-f]{32}(?![0-9a-f])"),
    # Hashes of passwords.
    *(_form(f"${kind}$", rf"\${re.escape(kind)}\$[\w./$=,+-]{{20,512}}+") for kind in _HASHES.split()),
    _form("pbkdf2_sha", r"pbkdf2_sha\d{1,3}\$\d{1,9}\$[\w./$=+-]{20,512}+"),
    _form("SHA}", r"(?<=\{)S?SHA\}[\w/+=]{20,512}+"),
)

# Words of a sentence have no digits; `bearer expires_in=3600` is no token either.
_AUTHENTICATION = r"[ \t]{1,3}(?!\w{1,32}=[^=\s])(?=[A-Za-z._~+/=-]{0,256}[0-9]|\S{24})[\w.~+/=:-]{8,8192}+"
_QUOTE = "[\"']"
_SPOKEN_CHAR = r"[^\s\"',;()\[\]]"
# Not `password varchar2(64)`.
_SPOKEN = rf"(?={_SPOKEN_CHAR}{{0,64}}[0-9])(?={_SPOKEN_CHAR}{{0,64}}[A-Za-z!@#$%^&*]){_SPOKEN_CHAR}{{6,256}}+(?!\()"
# Words before `token` and `secret` that give them another meaning: a syntax error, a command with a name.
_NOT_BEHIND = {"token": ("unexpected",), "secret": ("get", "describe", "delete", "mount", "edit")}


def _not_behind(word: str) -> str:
    return "".join(rf"(?<!{before} )" for before in _NOT_BEHIND.get(word, ()))


def _in_any_case(word: str, before: str, secret: str) -> Form:
    return _form(word, rf"({before}){_NOT_YET}{secret}", _KEEP, re.I)


_CHANGED = r"password (?:for \S{1,64} (?:is|was)|(?:(?:was|is|has been) )?(?:re)?(?:changed|set|updated) to) \"?"
_IN_ANY_CASE = (
    _form("bearer", rf"(\bbearer){_AUTHENTICATION}", rf"\g<1> {REDACTED}", re.I),
    _form("basic", rf"(\bbasic){_AUTHENTICATION}", rf"\g<1> {REDACTED}", re.I),
    # SQL, netrc, PowerShell, SMTP, Redis.
    _in_any_case(
        "password",
        rf"password[ \t]{{1,3}}[EN]?{_QUOTE}(?!is |was |for |in |must )",
        rf"[^\"'\r\n]{{1,256}}+(?={_QUOTE})",
    ),
    _in_any_case(
        "identified", rf"identified (?:with \S{{1,40}} )?(?:by|as)[ \t]{{1,3}}N?{_QUOTE}", r"[^\"'\r\n]{1,256}+"
    ),
    _in_any_case("password", _CHANGED, _SPOKEN),
    *(_in_any_case(word, rf"(?<![\w-]){word} (?:code )?", r"[0-9]{4,8}(?![\w.:-])") for word in ("otp", "pin")),
    _in_any_case("login", r"login\s{1,4}\S{1,128}\s{1,4}password\s{1,4}", r"\S{1,256}+"),
    _in_any_case("securestring", rf"securestring[ \t]{{1,3}}(?:-String[ \t])?{_QUOTE}?", r"(?!-)[^\"'\s]{1,256}+"),
    _in_any_case("auth ", "auth (?:plain|login) ", r"[\w+/=]{8,512}+"),
    _in_any_case("requirepass", "requirepass (?!is |was |not )", r"\S{1,512}+"),
    _in_any_case("masterauth", "masterauth ", r"\S{1,512}+"),
    # In a sentence: `with password hunter22`; not at the end of a path: `/auth/token HTTP/1.1`.
    *(
        _in_any_case(word, rf"(?<![\w/-]){_not_behind(word)}{word}[ \t]{{1,3}}", _SPOKEN)
        for word in ("password", "passwd", "pwd", "passcode", "passphrase", "secret", "token")
    ),
)

_WORD = rf"""(?:"{_NOT_YET}[^"\r\n]{{1,256}}+"|'{_NOT_YET}[^'\r\n]{{1,256}}+'|{_NOT_YET}(?!-)[^\s"'\]]{{1,256}}+)"""
_LIST = r"""(?:["'],[ \t]?)?"""


def _letter(letter: str, programs: str) -> Form:
    """Return the form of an option of one letter for the password, for these programs."""
    before = rf"(?<![\w-])(?:{programs})\b[^\r\n|]{{0,256}}?[ \t\"']-{letter}"
    return _form(f"-{letter}", rf"({before}{_LIST}[ ]?){_WORD}", _KEEP, near=rf"(?<=[ \t\"']-{letter})")


_USER = r"""[A-Za-z][^\s:"'/]{0,127}:"""
_COMMANDS = (
    # A user and a password, as for curl.
    _form(
        "-u",
        rf"((?<![\w-])-u{_LIST}[ =]?[\"']?{_USER}){_NOT_YET}(?!//)[^\s\"']{{1,256}}+",
        _KEEP,
        near=r"(?<![\w-]-u)",
    ),
    _form(
        "-user",
        rf"((?<![\w-])--(?:proxy-)?user(?:{_LIST}|[ =])[\"']?{_USER}){_NOT_YET}[^\s\"']{{1,256}}+",
        _KEEP,
        near="(?:(?<=--user)|(?<=--proxy-user))",
    ),
    _letter(
        "p",
        r"mysql\w{0,8}|mariadb\w{0,8}|sshpass|mongo\w{0,8}|docker login|podman login|registry login|cqlsh|beeline"
        r"|influx|az login|ncftp\w{0,4}|7z|rabbitmqadmin|amqp-\w{3,12}",
    ),
    _letter("P", r"sqlcmd|bcp|zip|unzip|mosquitto_\w{3}|isql|ipmitool"),
    _letter("a", "redis-cli|valkey-cli"),
    _letter("w", r"ldap\w{3,8}"),
    _letter("b", "gh secret set"),
    _form("-pass", rf"(-pass(?:in|out)?[ \t]{{1,3}}pass:){_WORD}", _KEEP, near=r"(?:in|out)?[ \t]"),
    _form("/p:", rf"((?<=\s)/p:){_WORD}", _KEEP),
    # The password is a separate argument.
    _form("sqlplus", rf"(sqlplus (?:-\S{{1,16}} ){{0,4}}\w{{1,64}}/){_NOT_YET}[^\s@\"']{{1,256}}+", _KEEP),
    _form("rabbitmqctl", rf"(rabbitmqctl [^\r\n|]{{0,64}}?(?:add_user|_password|_user) \S{{1,64}} ){_WORD}", _KEEP),
    _form(
        "htpasswd -", rf"(htpasswd -\w{{0,4}}b\w{{0,4}} (?:-\S{{1,16}} ){{0,4}}\S{{1,256}} \S{{1,64}} ){_WORD}", _KEEP
    ),
    _form("vault login", rf"(vault login (?:-\S{{1,64}} ){{0,4}})(?=\S{{16}}){_WORD}", _KEEP),
)
# A line of a pgpass file, which has no name for the password.
_PGPASS = re.compile(
    rf"^([\w.*-]{{1,128}}+:(?:\d{{2,5}}|\*):[\w.*-]{{1,64}}+:[\w.*-]{{1,64}}+:){_NOT_YET}\S{{1,256}}+$", re.M
)
MARKS = (
    *((form.word, form.near) for form in (*_AS_WRITTEN, *_COMMANDS)),
    (":", r"(?:\d{2,5}|\*):[\w.*-]{1,64}+:[\w.*-]{1,64}+:"),
)
"""Words with the text near them: `without_forms` changes no text without any of these."""
HINTS = tuple(form.word for form in _IN_ANY_CASE)
"""Words in lower case: `without_spoken_forms` changes no text without any of these."""


def without_forms(text: str) -> str:
    """Return the text without secrets that have a known form."""
    for form in _AS_WRITTEN:
        if form.word in text:
            text = _applied(form, text, text)
    for form in _COMMANDS:
        if form.word in text:
            text = form.pattern.sub(form.shown, text)
    return _PGPASS.sub(_KEEP, text)


def without_spoken_forms(text: str) -> str:
    """Return the text without secrets that follow a word in upper or lower case."""
    lowered = lower_in_place(text)
    for form in _IN_ANY_CASE:
        if form.word in lowered:
            shown = _applied(form, text, lowered)
            if shown is not text:
                text, lowered = shown, lower_in_place(shown)
    return text


def _applied(form: Form, text: str, searched: str) -> str:
    """Return the text without the matches of a form. `searched` is the text, or the text in lower case."""
    pieces: list[str] = []
    end, at = 0, searched.find(form.word)
    while at >= 0:
        found = form.pattern.match(text, at)
        if found is not None:
            pieces += (text[end:at], found.expand(form.shown))
            end = found.end()
        at = searched.find(form.word, max(end, at + 1))
    return "".join((*pieces, text[end:])) if pieces else text


def lower_in_place(text: str) -> str:
    """Return the text in lower case with unchanged positions: one capital letter, `İ`, would become two characters."""
    return text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()


_FOURS = r"(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|6[45]\d\d|62\d\d|35\d\d)(?P<a>[ .-]?)\d{4}(?P=a)\d{4}(?P=a)\d{4}"
_FIFTEEN = r"3[47]\d\d(?P<b>[ .-]?)\d{6}(?P=b)\d{5}"
_FOURTEEN = r"3(?:0[0-5]|[68]\d)\d(?P<c>[ .-]?)\d{6}(?P=c)\d{4}"
_CARD = re.compile(rf"(?<![\w.])(?:{_FOURS}|{_FIFTEEN}|{_FOURTEEN})(?![\w]|[.-]\d)", re.ASCII)
_REST = r"\d{3}[ .-]?(?:\d{4}[ .-]?\d{4}[ .-]?\d{4}|\d{6}[ .-]?\d{4,5})(?!\d)".replace(r"\d", "[0-9]")
CARD_MARKS = tuple((first, rf"(?<![A-Za-z0-9_.]{first}){_REST}") for first in "23456")
"""First digits with the text near them: a text without any of these has no card number."""
_LEAST, _MOST = 10**13, 10**16


def without_cards(text: str) -> str:
    """Return the text without card numbers."""
    return _CARD.sub(lambda found: REDACTED if _checks(found[0]) else found[0], text)


def is_card(number: int) -> bool:
    """Return whether a number is a card number."""
    return _LEAST <= number < _MOST and (found := _CARD.fullmatch(str(number))) is not None and _checks(found[0])


def _checks(written: str) -> bool:
    digits = [int(char) for char in reversed(written) if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0
