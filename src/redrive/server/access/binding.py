"""Where a server may listen: anywhere, if it asks for tokens; else on this machine only."""

from __future__ import annotations

from ipaddress import ip_address

from redrive.errors import InvalidInput


def may_bind(host: str, *, has_tokens: bool, allow_anyone: bool = False) -> None:
    """Raise where everybody who can reach the machine could read and change everything."""
    if has_tokens or allow_anyone or is_loopback(host):
        return
    raise InvalidInput(
        f"on {host or 'every address'} anybody who can reach this machine could read and change everything; make a "
        f"token on its store first (redrive token create NAME --role admin, with the same --url), listen on 127.0.0.1, "
        f"or say --allow-anyone"
    )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can connect there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
