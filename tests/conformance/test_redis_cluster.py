"""Redis again, on a cluster of three servers: each test has a slot of its own, so all servers get some of them.

All of the suite with REDRIVE_THOROUGH; else the parts that between them run every script and every kind of query.
"""

import pytest
from tests.sizes import THOROUGH

from redrive.testing.conformance import StoreConformance
from redrive.testing.conformance.batch_order import BatchOrderConformance
from redrive.testing.conformance.batches import BatchConformance
from redrive.testing.conformance.completion import CompleteConformance, ResultConformance
from redrive.testing.conformance.dead_queue_moves import MoveConformance
from redrive.testing.conformance.deaths import DeadInPlaceConformance
from redrive.testing.conformance.failures import FailConformance
from redrive.testing.conformance.find import FilterConformance
from redrive.testing.conformance.idempotency import IdempotencyConformance
from redrive.testing.conformance.leases import LeaseConformance
from redrive.testing.conformance.lost_leases import HeldConformance
from redrive.testing.conformance.maintenance import UpkeepConformance
from redrive.testing.conformance.manual_changes import ByHandConformance
from redrive.testing.conformance.named_items import NamedItemConformance
from redrive.testing.conformance.operations import BulkConformance
from redrive.testing.conformance.puts import PutConformance
from redrive.testing.conformance.registrations import RegistrationConformance
from redrive.testing.conformance.shared_stores import DurableConformance, SharingConformance
from redrive.testing.conformance.wakeups import WaitConformance


class Essentials(
    BatchConformance,
    BatchOrderConformance,
    ByHandConformance,
    BulkConformance,
    CompleteConformance,
    DeadInPlaceConformance,
    DurableConformance,
    FailConformance,
    FilterConformance,
    NamedItemConformance,
    HeldConformance,
    IdempotencyConformance,
    LeaseConformance,
    MoveConformance,
    PutConformance,
    RegistrationConformance,
    ResultConformance,
    SharingConformance,
    UpkeepConformance,
    WaitConformance,
):
    """What a store does, without what it refuses."""


Parts = StoreConformance if THOROUGH else Essentials


class TestRedisCluster(Parts):
    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url
