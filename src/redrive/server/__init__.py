"""The broker over HTTP, as an ASGI application that runs by itself or inside another one."""
