"""All parts of the suite in one class."""

from __future__ import annotations

from redrive.testing.conformance.archiving import RetentionOfTheDeadConformance
from redrive.testing.conformance.arrivals import ArrivalConformance
from redrive.testing.conformance.async_looking import AsyncLookingConformance
from redrive.testing.conformance.asynchronous import AsyncConformance
from redrive.testing.conformance.batches import BatchConformance, VerdictConformance
from redrive.testing.conformance.by_hand import ByHandConformance
from redrive.testing.conformance.captures import CaptureConformance
from redrive.testing.conformance.captures_again import (
    CaptureAgainConformance,
    CaptureBatchConformance,
    CaptureOfMovingConformance,
)
from redrive.testing.conformance.closing import CloseConformance
from redrive.testing.conformance.completes import CompleteConformance
from redrive.testing.conformance.counts import StatsConformance
from redrive.testing.conformance.dead_queues import DeadQueueRulesConformance
from redrive.testing.conformance.dead_queues_between import DeadQueueElsewhereRulesConformance
from redrive.testing.conformance.deaths import (
    BuryConformance,
    DeadInPlaceConformance,
    DropConformance,
    ReasonConformance,
)
from redrive.testing.conformance.delays import DelayConformance, ErrorClassConformance, LimitConformance
from redrive.testing.conformance.editing import EditConformance
from redrive.testing.conformance.expiry import ExpiryConformance
from redrive.testing.conformance.failures import FailConformance
from redrive.testing.conformance.feeding import FeedConformance, FeedReadingConformance
from redrive.testing.conformance.file import FileConformance
from redrive.testing.conformance.finding import FilterConformance
from redrive.testing.conformance.grouping import GroupConformance, GroupCountConformance
from redrive.testing.conformance.health import HealthConformance, StuckConformance
from redrive.testing.conformance.held import HeldConformance, LostAtOnceConformance, LostConformance
from redrive.testing.conformance.histories import HistoryConformance
from redrive.testing.conformance.holds import HoldConformance
from redrive.testing.conformance.idempotency import IdempotencyConformance
from redrive.testing.conformance.late import ExtendConformance, LateConformance
from redrive.testing.conformance.leased_from import LeasedFromConformance
from redrive.testing.conformance.leases import EligibilityConformance, LeaseConformance, OrderConformance
from redrive.testing.conformance.lineage import LineageConformance, SourceConformance
from redrive.testing.conformance.losses import LossConformance
from redrive.testing.conformance.managed import ManagedConformance
from redrive.testing.conformance.moves import MoveConformance, RouteConformance
from redrive.testing.conformance.moves_between import (
    DeadQueueElsewhereConformance,
    InterruptedMoveConformance,
    OnItsWayConformance,
)
from redrive.testing.conformance.moves_by_hand import MoveByHandConformance, PurgeConformance
from redrive.testing.conformance.names import NameConformance, NamespaceConformance
from redrive.testing.conformance.operating import BulkConformance
from redrive.testing.conformance.outcomes import OutcomeConformance
from redrive.testing.conformance.pacing import CanaryConformance, DriveConformance, PauseConformance, RateConformance
from redrive.testing.conformance.paging import PageConformance
from redrive.testing.conformance.payloads import PayloadConformance
from redrive.testing.conformance.puts import PutConformance, PutOptionsRefused, SizeConformance
from redrive.testing.conformance.queues import QueueConformance
from redrive.testing.conformance.redacting import RedactConformance
from redrive.testing.conformance.redrives import RedriveFromDeadQueueConformance
from redrive.testing.conformance.redrives_between import MoveElsewhereConformance, RedriveElsewhereConformance
from redrive.testing.conformance.refusals import RefusalConformance
from redrive.testing.conformance.registrations import (
    OvertakenConformance,
    RegistrationConformance,
    RegistrationPutsConformance,
)
from redrive.testing.conformance.releases import ReleaseConformance, UncountedReleaseConformance
from redrive.testing.conformance.results import KeepResultConformance, ResultConformance
from redrive.testing.conformance.retentions import RetentionConformance
from redrive.testing.conformance.retries import ArchiveConformance, FailByHandConformance, RetryConformance
from redrive.testing.conformance.searching import SearchConformance
from redrive.testing.conformance.sharing import DurableConformance, SharingConformance
from redrive.testing.conformance.snapshots import SnapshotConformance
from redrive.testing.conformance.stepping import StepConformance
from redrive.testing.conformance.transactions import TransactionConformance
from redrive.testing.conformance.transfers import TransferConformance
from redrive.testing.conformance.twins import TwinConformance
from redrive.testing.conformance.undoing import UndoConformance, UndoOperationConformance
from redrive.testing.conformance.upkeep import UpkeepConformance
from redrive.testing.conformance.waits import WaitConformance
from redrive.testing.conformance.worker_life import WorkerLifeConformance
from redrive.testing.conformance.workers import AsyncWorkersConformance, WorkersConformance
from redrive.testing.conformance.working import WorkingConformance


class StoreConformance(
    QueueConformance,
    DeadQueueRulesConformance,
    NameConformance,
    NamespaceConformance,
    PutConformance,
    PutOptionsRefused,
    SizeConformance,
    PayloadConformance,
    IdempotencyConformance,
    TransactionConformance,
    LeaseConformance,
    OrderConformance,
    EligibilityConformance,
    WaitConformance,
    WorkingConformance,
    WorkerLifeConformance,
    HoldConformance,
    LateConformance,
    ExtendConformance,
    LeasedFromConformance,
    CompleteConformance,
    FailConformance,
    LimitConformance,
    DelayConformance,
    ErrorClassConformance,
    ReleaseConformance,
    UncountedReleaseConformance,
    LossConformance,
    HeldConformance,
    LostAtOnceConformance,
    LostConformance,
    ResultConformance,
    KeepResultConformance,
    RegistrationConformance,
    OvertakenConformance,
    RegistrationPutsConformance,
    ManagedConformance,
    FileConformance,
    WorkersConformance,
    ExpiryConformance,
    BuryConformance,
    ReasonConformance,
    DeadInPlaceConformance,
    DropConformance,
    MoveConformance,
    RouteConformance,
    RedriveFromDeadQueueConformance,
    ByHandConformance,
    RetryConformance,
    FailByHandConformance,
    ArchiveConformance,
    HistoryConformance,
    CaptureConformance,
    CaptureAgainConformance,
    CaptureOfMovingConformance,
    CaptureBatchConformance,
    RetentionConformance,
    StatsConformance,
    SharingConformance,
    DurableConformance,
    RefusalConformance,
    AsyncConformance,
    AsyncLookingConformance,
    AsyncWorkersConformance,
    BatchConformance,
    VerdictConformance,
    ArrivalConformance,
    UpkeepConformance,
    LineageConformance,
    SourceConformance,
    FilterConformance,
    PageConformance,
    SearchConformance,
    GroupConformance,
    GroupCountConformance,
    FeedConformance,
    FeedReadingConformance,
    BulkConformance,
    OutcomeConformance,
    SnapshotConformance,
    StepConformance,
    TwinConformance,
    CanaryConformance,
    DriveConformance,
    PauseConformance,
    RateConformance,
    UndoConformance,
    UndoOperationConformance,
    MoveByHandConformance,
    PurgeConformance,
    EditConformance,
    TransferConformance,
    RetentionOfTheDeadConformance,
    RedactConformance,
    DeadQueueElsewhereConformance,
    DeadQueueElsewhereRulesConformance,
    OnItsWayConformance,
    InterruptedMoveConformance,
    RedriveElsewhereConformance,
    MoveElsewhereConformance,
    HealthConformance,
    StuckConformance,
    CloseConformance,
):
    """Everything a store has to do."""
