from collections.abc import Callable, Iterator

import pytest
from tests.servers.postgres import Server
from tests.servers.redis import Server as RedisServer

SCHEMA = PREFIX = "simulation"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Gives the URL of an empty store, for a run that has this folder. The run before is over then."""
    if request.param == "memory":
        yield lambda folder: "memory://"
    elif request.param == "sqlite":
        yield lambda folder: f"sqlite:///{folder}/redrive.db"
    elif request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")

        def emptied(folder: str) -> str:
            redis.remove(PREFIX)
            return f"{redis.url}?prefix={PREFIX}"

        yield emptied
        emptied("")
    else:
        server: Server = request.getfixturevalue("postgres")

        def empty(folder: str) -> str:
            server.empty(SCHEMA)
            return f"{server.url}?schema={SCHEMA}"

        yield empty


@pytest.fixture
def slower(request: pytest.FixtureRequest) -> int:
    """By what to divide the number of runs: a call to a server takes longer than one to a file."""
    return 3 if request.node.callspec.params["place"] in ("postgres", "redis") else 1
