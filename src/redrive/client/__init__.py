"""The store behind a server: `connect("http://…")`."""

from redrive.client.remote_store import RemoteStore

__all__ = ["RemoteStore"]
