"""All parts of the conformance suite in one class."""

from __future__ import annotations

from redrive.testing.conformance.archive import ArchiveCallsConformance, ArchiveOfAnyConformance
from redrive.testing.conformance.async_broker import AsyncConformance, AsyncLookingConformance
from redrive.testing.conformance.awaited_ends import AwaitConformance
from redrive.testing.conformance.batch_order import BatchOrderConformance
from redrive.testing.conformance.batches import BatchConformance, VerdictConformance
from redrive.testing.conformance.blocked_probes import BlockedProbeConformance
from redrive.testing.conformance.breaker_probes import BreakerControlConformance, ProbeConformance
from redrive.testing.conformance.breaker_states import SetBreakersConformance
from redrive.testing.conformance.breakers import HoldingConformance, OpeningConformance
from redrive.testing.conformance.capture import DeadLetterQueueConformance
from redrive.testing.conformance.capture_administration import (
    CaptureAdministrationConformance,
    CaptureFileConformance,
)
from redrive.testing.conformance.capture_alert_hooks import CaptureHookConformance
from redrive.testing.conformance.capture_archive import CaptureArchiveConformance
from redrive.testing.conformance.capture_guard import GuardConformance
from redrive.testing.conformance.capture_manual_retry import ManualRetryConformance
from redrive.testing.conformance.capture_methods import MethodGuardConformance
from redrive.testing.conformance.capture_templates import TemplateConformance
from redrive.testing.conformance.completion import CompleteConformance, KeepResultConformance, ResultConformance
from redrive.testing.conformance.config_file import FileConformance, ManagedConformance
from redrive.testing.conformance.cross_store_moves import (
    DeadQueueElsewhereConformance,
    DeadQueueElsewhereRulesConformance,
    InterruptedMoveConformance,
    MovingItemConformance,
)
from redrive.testing.conformance.cross_store_redrives import MoveElsewhereConformance, RedriveElsewhereConformance
from redrive.testing.conformance.dead_queue_moves import MoveConformance, RouteConformance
from redrive.testing.conformance.deaths import (
    BuryConformance,
    DeadInPlaceConformance,
    DropConformance,
    ReasonConformance,
)
from redrive.testing.conformance.drops import DropByHandConformance, DroppedKeyConformance
from redrive.testing.conformance.export_import import LineageConformance, SourceConformance, TransferConformance
from redrive.testing.conformance.extend_and_release import (
    ExtendConformance,
    FencingConformance,
    ReleaseConformance,
    UncountedReleaseConformance,
)
from redrive.testing.conformance.failure_entries import FailureEntriesConformance
from redrive.testing.conformance.failures import FailConformance, HistoryConformance
from redrive.testing.conformance.feed import FeedConformance, FeedReadingConformance
from redrive.testing.conformance.find import FilterConformance, PageConformance
from redrive.testing.conformance.gates import GateConformance, RetryAfterGateConformance
from redrive.testing.conformance.get_items import GetItemsConformance
from redrive.testing.conformance.groups import GroupConformance, GroupCountConformance, StatsConformance
from redrive.testing.conformance.held_verdicts import HeldVerdictConformance
from redrive.testing.conformance.holders import HolderConformance, HolderTransferConformance, LastingHoldConformance
from redrive.testing.conformance.idempotency import CaptureConformance, IdempotencyConformance
from redrive.testing.conformance.invalid_input import NameConformance, NamespaceConformance, RefusalConformance
from redrive.testing.conformance.item_keys import (
    FindByKeyConformance,
    ItemKeyBatchConformance,
    ItemKeyConformance,
    MovingItemKeyConformance,
)
from redrive.testing.conformance.item_retry import (
    ItemRetryConformance,
    KeptRetryConformance,
    RefusedRetryConformance,
    RetryElsewhereConformance,
)
from redrive.testing.conformance.lease_by_id import LeaseByIdConformance, LeaseByIdRefusals
from redrive.testing.conformance.lease_scope import LeasedFromConformance
from redrive.testing.conformance.leased_dead_letter_changes import (
    LeasedDeadLetterBrokers,
    LeasedDeadLetterChanges,
    LeasedDeadLetterElsewhere,
)
from redrive.testing.conformance.leased_dead_letters import LeasedDeadLetterConformance
from redrive.testing.conformance.leases import (
    EligibilityConformance,
    HoldConformance,
    LeaseConformance,
    OrderConformance,
)
from redrive.testing.conformance.list_stats import ListStatsConformance
from redrive.testing.conformance.lost_leases import (
    HeldConformance,
    LossConformance,
    LostAtOnceConformance,
    LostConformance,
)
from redrive.testing.conformance.mailbox_consumers import DLQConsumerConformance
from redrive.testing.conformance.mailbox_letters import LetterConformance, UndecodableConformance
from redrive.testing.conformance.mailbox_loops import MainLoopConformance
from redrive.testing.conformance.mailbox_replays import EvalLoopConformance, ReplayConformance
from redrive.testing.conformance.mailbox_replies import MailboxElsewhereConformance, MailboxReplyConformance
from redrive.testing.conformance.mailbox_services import ServiceConformance
from redrive.testing.conformance.mailboxes import MailboxConformance
from redrive.testing.conformance.maintenance import (
    RetentionConformance,
    RetentionOfTheDeadConformance,
    UpkeepConformance,
)
from redrive.testing.conformance.manual_changes import ByHandConformance, MoveByHandConformance, PurgeConformance
from redrive.testing.conformance.named_items import NamedItemConformance
from redrive.testing.conformance.operation_rate import (
    CanaryConformance,
    DriveConformance,
    OutcomeConformance,
    PauseConformance,
    RateConformance,
)
from redrive.testing.conformance.operation_snapshots import BulkEquivalenceConformance, SnapshotConformance
from redrive.testing.conformance.operations import BulkConformance, StepConformance
from redrive.testing.conformance.payloads import PayloadConformance, RedactConformance
from redrive.testing.conformance.plan_subjects import PlanSubjectConformance
from redrive.testing.conformance.put_failed_repeats import (
    CaptureAgainConformance,
    CaptureBatchConformance,
    CaptureOfMovingConformance,
)
from redrive.testing.conformance.puts import PutConformance, PutOptionsRefused, SizeConformance, TransactionConformance
from redrive.testing.conformance.queues import DeadQueueRulesConformance, QueueConformance
from redrive.testing.conformance.redrive_and_undo import (
    RedriveFromDeadQueueConformance,
    UndoConformance,
    UndoOperationConformance,
)
from redrive.testing.conformance.registrations import (
    OvertakenConformance,
    RegistrationConformance,
    RegistrationPutsConformance,
)
from redrive.testing.conformance.replies import ReplyConformance, ReplyElsewhereConformance
from redrive.testing.conformance.retry_after import RetryAfterConformance
from redrive.testing.conformance.retry_archive_edit import (
    ArchiveConformance,
    EditConformance,
    FailByHandConformance,
    RetryConformance,
)
from redrive.testing.conformance.retry_policy import (
    DelayConformance,
    ErrorClassConformance,
    ExpiryConformance,
    LimitConformance,
)
from redrive.testing.conformance.returned_deliveries import ReturnedDeliveryConformance
from redrive.testing.conformance.schedule_changes import RescheduleConformance
from redrive.testing.conformance.search import SearchConformance
from redrive.testing.conformance.shared_gates import GateWaitConformance, SharedGateConformance
from redrive.testing.conformance.shared_stores import (
    CloseConformance,
    DurableConformance,
    HealthConformance,
    SharingConformance,
    StuckMoveConformance,
)
from redrive.testing.conformance.tasks import WorkingConformance
from redrive.testing.conformance.totals import RedrivenElsewhereConformance, TotalsConformance
from redrive.testing.conformance.wakeups import ArrivalConformance, WaitConformance
from redrive.testing.conformance.workers import AsyncWorkersConformance, WorkerLifeConformance, WorkersConformance


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
    ItemKeyConformance,
    ItemKeyBatchConformance,
    MovingItemKeyConformance,
    FindByKeyConformance,
    TransactionConformance,
    LeaseConformance,
    OrderConformance,
    EligibilityConformance,
    LeaseByIdConformance,
    LeaseByIdRefusals,
    GateConformance,
    SetBreakersConformance,
    RetryAfterGateConformance,
    GateWaitConformance,
    SharedGateConformance,
    LeasedDeadLetterConformance,
    LeasedDeadLetterChanges,
    LeasedDeadLetterElsewhere,
    LeasedDeadLetterBrokers,
    WaitConformance,
    WorkingConformance,
    WorkerLifeConformance,
    HoldConformance,
    HolderConformance,
    LastingHoldConformance,
    HeldVerdictConformance,
    HolderTransferConformance,
    ReturnedDeliveryConformance,
    FencingConformance,
    ExtendConformance,
    LeasedFromConformance,
    CompleteConformance,
    FailConformance,
    LimitConformance,
    DelayConformance,
    ErrorClassConformance,
    ItemRetryConformance,
    KeptRetryConformance,
    RefusedRetryConformance,
    RetryElsewhereConformance,
    ReleaseConformance,
    UncountedReleaseConformance,
    LossConformance,
    HeldConformance,
    LostAtOnceConformance,
    LostConformance,
    ResultConformance,
    KeepResultConformance,
    ReplyConformance,
    ReplyElsewhereConformance,
    RegistrationConformance,
    OvertakenConformance,
    RegistrationPutsConformance,
    ManagedConformance,
    FileConformance,
    WorkersConformance,
    MailboxConformance,
    MailboxReplyConformance,
    MailboxElsewhereConformance,
    MainLoopConformance,
    DLQConsumerConformance,
    ReplayConformance,
    LetterConformance,
    UndecodableConformance,
    ServiceConformance,
    DeadLetterQueueConformance,
    ManualRetryConformance,
    CaptureFileConformance,
    CaptureAdministrationConformance,
    GuardConformance,
    MethodGuardConformance,
    RetryAfterConformance,
    TemplateConformance,
    CaptureHookConformance,
    CaptureArchiveConformance,
    EvalLoopConformance,
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
    ArchiveOfAnyConformance,
    DropByHandConformance,
    DroppedKeyConformance,
    ArchiveCallsConformance,
    HistoryConformance,
    CaptureConformance,
    CaptureAgainConformance,
    CaptureOfMovingConformance,
    CaptureBatchConformance,
    RetentionConformance,
    StatsConformance,
    TotalsConformance,
    RedrivenElsewhereConformance,
    ListStatsConformance,
    SharingConformance,
    DurableConformance,
    RefusalConformance,
    AsyncConformance,
    AsyncLookingConformance,
    AsyncWorkersConformance,
    BatchConformance,
    BatchOrderConformance,
    VerdictConformance,
    ArrivalConformance,
    AwaitConformance,
    UpkeepConformance,
    LineageConformance,
    SourceConformance,
    GetItemsConformance,
    FilterConformance,
    NamedItemConformance,
    PageConformance,
    SearchConformance,
    GroupConformance,
    GroupCountConformance,
    FeedConformance,
    FailureEntriesConformance,
    FeedReadingConformance,
    PlanSubjectConformance,
    BulkConformance,
    OutcomeConformance,
    SnapshotConformance,
    StepConformance,
    BulkEquivalenceConformance,
    CanaryConformance,
    DriveConformance,
    PauseConformance,
    RateConformance,
    UndoConformance,
    UndoOperationConformance,
    MoveByHandConformance,
    PurgeConformance,
    RescheduleConformance,
    EditConformance,
    TransferConformance,
    RetentionOfTheDeadConformance,
    RedactConformance,
    DeadQueueElsewhereConformance,
    DeadQueueElsewhereRulesConformance,
    MovingItemConformance,
    InterruptedMoveConformance,
    RedriveElsewhereConformance,
    MoveElsewhereConformance,
    OpeningConformance,
    HoldingConformance,
    ProbeConformance,
    BlockedProbeConformance,
    BreakerControlConformance,
    HealthConformance,
    StuckMoveConformance,
    CloseConformance,
):
    """All tests that a store has to pass."""
