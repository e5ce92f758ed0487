"""The store that is a server: `connect("http://…")`."""

from redrive.client.store import RemoteStore

__all__ = ["RemoteStore"]
