"""The command `redrive` with a server whose requests all take the ASGI application: what the direct path is beside.

`python -m benchmarks.http_slow_path --url URL serve --port PORT`
"""

from typing import Any

from redrive.cli.main import main
from redrive.server.asgi import Server

_made = Server.__init__


def _made_without(server: Server, *arguments: Any, **options: Any) -> None:
    _made(server, *arguments, **options)
    server.direct_routes.clear()


if __name__ == "__main__":
    Server.__init__ = _made_without  # type: ignore[method-assign]
    main()
