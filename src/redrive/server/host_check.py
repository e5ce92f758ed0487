"""The host names that a server without tokens answers to.

A page in a browser can send requests to programs on the same machine. It cannot read responses of another site, nor
hide its origin, unless its own name resolves to this machine (DNS rebinding). So a server without tokens checks what
browsers send: the requested name (Host), the origin of the page (Origin), and for requests without Origin whether the
page is of another site (Sec-Fetch-Site).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from redrive.errors import AccessError

_REMEMBERED = 1000
_NO_OTHER_SITE = (b"same-origin", b"none")
"""Values for a page of this server, or for no page. `same-site` means another port, or a sibling domain."""


class HostNotAllowed(AccessError):
    """The request is for another host name, or from a page of another site."""

    code = "host_not_allowed"

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}. This server asks for no token, so it answers only to its own names")


class AllowedHosts:
    """The host names of a server: addresses, localhost, the name of this machine, and `names`. None: any name."""

    def __init__(self, names: Collection[str] | None = ()) -> None:
        self._any = names is None
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names or ())}
        self._known: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request is for this server and not from another site."""
        host = headers.get(b"host")
        if host not in self._known and host is not None and not self._any:
            if not self._is_ours(host):
                raise HostNotAllowed(f"the request is for {_shown(host)}")
            if len(self._known) < _REMEMBERED:
                self._known.add(host)
        origin = headers.get(b"origin")
        if origin is not None and not _is_same(origin, host):
            raise HostNotAllowed(f"the request comes from a page of {_shown(origin)}")

    def check_call(self, headers: Mapping[bytes, bytes]) -> None:
        """Check as `check` does, and refuse links from another site: they may open a page here, but not make a call."""
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _NO_OTHER_SITE:
            raise HostNotAllowed(f"a browser says that the request is {_shown(site)}")
        self.check(headers)

    def _is_ours(self, host: bytes) -> bool:
        name = _name_of("//" + host.decode("latin-1"))
        if name is None:
            return False
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _shown(header: bytes) -> str:
    """Return the value of a header for an error text."""
    return ascii(header[:200].decode("latin-1"))


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
    """Return whether the origin of a page is this server."""
    return host is not None and origin.decode("latin-1").partition("://")[2].lower() == host.decode("latin-1").lower()
