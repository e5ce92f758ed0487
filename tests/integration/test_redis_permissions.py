"""What the guide to Redis says about rights is enough."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from tests.servers.redis import Cluster, Server

from redrive import Broker, connect
from redrive.errors import StoreUnavailable

GUIDE = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"
RIGHTS = re.search(r"ACL SETUSER app ([^`]+)", GUIDE.read_text(), flags=re.DOTALL)


def documented(user: str, prefix: str) -> str:
    assert RIGHTS is not None
    return f"ACL SETUSER {user} {' '.join(RIGHTS[1].split())}".replace("{redrive:", f"{{{prefix}:")


def use(broker: Broker) -> None:
    """Every script, and every kind of query."""
    broker.create_queue("jobs")
    broker.put("jobs", 1, idempotency_key="k")
    (lease,) = broker.lease("jobs", wait="1s")
    broker.fail(lease, "boom", final=True)
    broker.redrive(broker.find().items[0].id)
    broker.run_maintenance()
    broker.groups()
    broker.core.store.poll_changes()
    broker.complete(broker.lease("jobs")[0])
    broker.update_queue("jobs", keep_completed="1h")
    assert broker.stats("jobs").completed_total == 1
    assert broker.audit()
    broker.delete_queue("jobs")


def test_user_with_the_documented_rights_and_no_others(redis_server: Server, redis_url: str) -> None:
    prefix = redis_url.partition("prefix=")[2]
    with contextlib.closing(redis_server.client()) as admin:
        admin.execute_command(documented(prefix, prefix))
        try:
            theirs = redis_url.replace("127", f"{prefix}:secret@127", 1)
            with connect(theirs, maintenance=False) as broker:
                use(broker)
                assert broker.durability().level == "full"
            with pytest.raises(StoreUnavailable):
                connect(theirs.replace("prefix=", "prefix=not_"))
        finally:
            admin.execute_command("ACL DELUSER", prefix)


def test_user_of_a_cluster(redis_cluster: Cluster, redis_cluster_url: str) -> None:
    prefix = redis_cluster_url.partition("prefix=")[2]
    with contextlib.ExitStack() as stack:
        admins = [stack.enter_context(contextlib.closing(server.client())) for server in redis_cluster.servers]
        for admin in admins:
            admin.execute_command(documented(prefix, prefix) + " +cluster|slots")
            stack.callback(admin.execute_command, "ACL DELUSER", prefix)
        with connect(redis_cluster_url.replace("127", f"{prefix}:secret@127", 1), maintenance=False) as broker:
            use(broker)
