"""Which sites a server without tokens answers to.

A page in a browser can send requests to programs on the same machine. It cannot read the answers of another site, nor
hide from where it comes, unless its own name is made to point here (DNS rebinding). So a server that asks for no token
looks at what browsers say: the name that was called (Host), the page that called it (Origin), and for requests without
an Origin whether that page is of another site (Sec-Fetch-Site).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from redrive.errors import AccessError

_REMEMBERED = 1000
_NO_OTHER_SITE = (b"same-origin", b"none")
"""Sent by a page of this server, or by no page at all. `same-site` is another port, or a neighbouring name."""


class HostNotAllowed(AccessError):
    """The request was made for another name, or by a page of another site."""

    code = "host_not_allowed"

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}. This server asks for no token, so it answers only to its own names")


class AllowedHosts:
    """The names that a server goes by: addresses, localhost, this machine's own, and those given. None: any."""

    def __init__(self, names: Collection[str] | None = ()) -> None:
        self._any = names is None
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names or ())}
        self._known: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request is meant for this server, and comes from no other site."""
        host = headers.get(b"host")
        if host not in self._known and host is not None and not self._any:
            if not self._is_ours(host):
                raise HostNotAllowed(f"the request is for {host[:200]!a}")
            if len(self._known) < _REMEMBERED:
                self._known.add(host)
        origin = headers.get(b"origin")
        if origin is not None and not _is_same(origin, host):
            raise HostNotAllowed(f"the request comes from a page of {origin[:200]!a}")

    def check_call(self, headers: Mapping[bytes, bytes]) -> None:
        """The same for what may change something: a link from another site may lead to a page here, not to a call."""
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _NO_OTHER_SITE:
            raise HostNotAllowed(f"a browser says that the request is {site[:200]!a}")
        self.check(headers)

    def _is_ours(self, host: bytes) -> bool:
        name = _name_of("//" + host.decode("latin-1"))
        if name is None:
            return False
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: bytes, host: bytes | None) -> bool:
    """Whether a page is one of this server itself."""
    return host is not None and origin.decode("latin-1").partition("://")[2].lower() == host.decode("latin-1").lower()
