"""The broker over HTTP, as an ASGI application: a separate server, or mounted in another application."""
