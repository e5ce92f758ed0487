"""Every call and every query × every role × where the caller may go: let in or refused, as a table says.

The table here is no copy of the one in `needs`: it names roles, not rights, and says in words where each call is about.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest
from tests.access.world import FOREIGN, NAMESPACE, OWN, Side, World, everywhere, in_another_namespace, limited

from redrive import Dead, Failure, Filter, QueueSettings, RedriveError, RetryVerdict, Verb
from redrive.auth.permissions import CALL_PERMISSIONS
from redrive.auth.principal import TOKENS_NAMESPACE, Principal, Role
from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    AuditNote,
    CreateQueue,
    DeleteQueue,
    Hold,
    ManualChange,
    ManualTarget,
    Register,
    SetBreakers,
    SetOperation,
    SetPaused,
    SetSourceQueue,
    StartOperation,
    StepOperation,
    Unhold,
    Unregister,
    UpdateQueue,
)
from redrive.contract.item_calls import (
    Complete,
    Extend,
    LeaseByIds,
    LeaseItems,
    NewItem,
    Put,
    Reply,
    ReturnLease,
    Settle,
)
from redrive.contract.maintenance_calls import ApplyRetention, CloseMove, Expire, FinishMove, Import, Promote, Receive
from redrive.contract.queries import (
    CountItems,
    FindItems,
    FindPlanSubjects,
    GetIdempotencyOwners,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetLease,
    GetLeasedItem,
    GetLeases,
    GetNextDue,
    GetOperation,
    GetOverdue,
    GetQueue,
    GetResult,
    GetStats,
    ListAudit,
    ListGroups,
    ListMoves,
    ListMoveTargets,
    ListOpenMoves,
    ListOperations,
    ListQueues,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    ReadFeed,
)
from redrive.contract.replies import REPLY_TO
from redrive.errors import Forbidden, InvalidInput, ItemNotFound, LeaseLost, OperationNotFound
from redrive.model.arrival import Move, MoveRoute
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Result, Status
from redrive.model.judge import OutcomeKind
from redrive.model.operation import OperationStatus
from redrive.server.validation.dispatch import VALIDATORS

REFUSALS = (Forbidden, ItemNotFound, LeaseLost, OperationNotFound)
ITEM = NewItem(b"1", "application/json")
ID = ItemId("7" + "0" * 31)
HERE = "in the queue"
"""A caller who is let into some queues may do it there and not elsewhere."""
ALL = "in all queues"
"""It is about every queue: only who is let into all of them may do it."""
ANY = "in any"
"""Whoever has the role anywhere may do it; what comes of it is about his own queues only."""


class Sample(typing.NamedTuple):
    """A call, who may make it, and where."""

    what: str
    make: Callable[[World, Side], Call | Query]
    roles: str
    where: str


def move_of(w: World, s: Side) -> Move:
    route = MoveRoute("x@there", Instant(1), FeedKind.MOVED, Status.PENDING)
    return Move(msgspec.structs.replace(w.broker.get(s.id), status=Status.MOVING), route, False, Instant(1))


def settled(
    verdict: RetryVerdict | Dead, outcome_kind: OutcomeKind = OutcomeKind.FAILED, **more: Any
) -> Callable[[World, Side], Call]:
    return lambda w, s: Settle(s.token, outcome_kind, verdict, version_of(w, s), **more)


def dead_to(queue: str) -> Callable[[World, Side], Call]:
    def make(w: World, s: Side) -> Call:
        return Settle(s.token, OutcomeKind.BURIED, Dead(to=getattr(s, queue)), version_of(w, s))

    return make


def version_of(w: World, s: Side) -> int:
    return w.broker.get_queue(s.queue).version


def changed(verb: Verb, id: str = "id", **more: Any) -> Callable[[World, Side], Call]:
    return lambda w, s: ManualChange(verb, (ManualTarget(getattr(s, id)),), "mallory", **more)


def judged(verb: Verb) -> Callable[[World, Side], Call]:
    verdict = RetryVerdict(0, Status.FAILED) if verb is Verb.FAIL else Dead(DeadReason.BURIED)
    return lambda w, s: ManualChange(verb, (ManualTarget(ItemId(s.id), verdict, version_of(w, s)),), "mallory")


def started(verb: Verb, **more: Any) -> Callable[[World, Side], Call]:
    where = {"status": Status.ARCHIVED} if verb is Verb.PURGE else {}
    return lambda w, s: StartOperation(
        verb=verb,
        where=Filter(queue=s.dead_queue, **where),
        actor="mallory",
        **more,
    )


ADMIN = "admin"
ON_CALL = "operator admin"
WORKS = "consumer admin"
PUTS = "producer requester consumer admin"
LOOKS = "viewer operator admin"
ALL_ROLES = "producer requester capturer consumer viewer operator admin"
CAPTURES = "capturer consumer admin"
AWAITS = "requester operator admin"

SAMPLES = (
    Sample("create a queue", lambda w, s: CreateQueue(f"{s.side}-new", QueueSettings()), ADMIN, HERE),
    Sample(
        "send the dead of a new queue to another",
        lambda w, s: CreateQueue("own-new", QueueSettings(dead_queue=s.dead_queue)),
        ADMIN,
        HERE,
    ),
    Sample("change settings", lambda w, s: UpdateQueue(s.queue, QueueSettings(), 1, "mallory"), ADMIN, HERE),
    Sample("pause", lambda w, s: SetPaused(s.queue, True, "mallory"), ON_CALL, HERE),
    Sample("open a breaker", lambda w, s: SetBreakers(s.queue, (), 1, "mallory"), ON_CALL, HERE),
    Sample("use as a dead queue", lambda w, s: SetSourceQueue(s.queue, "x@there"), ADMIN, HERE),
    Sample("delete a queue", lambda w, s: DeleteQueue(s.queue, 1, "mallory"), ADMIN, HERE),
    Sample("put", lambda w, s: Put(s.queue, (ITEM,)), PUTS, HERE),
    Sample("put with a queue for replies", lambda w, s: Put(w.sides[OWN].queue, (answered(s),)), PUTS, HERE),
    Sample("put what failed", lambda w, s: Put(s.queue, (failed_item(w, s, Dead(to=s.dead_queue)),)), CAPTURES, HERE),
    Sample(
        "put what failed, and what did not",
        lambda w, s: Put(s.queue, (ITEM, failed_item(w, s, Dead(to=s.dead_queue)))),
        "consumer admin",
        HERE,
    ),
    Sample("set what is captured", lambda w, s: Register("capture", s.queue, b"{}"), ADMIN, ALL),
    Sample("forget what is captured", lambda w, s: Unregister("capture", s.queue), ADMIN, ALL),
    Sample("put to be dropped", lambda w, s: Put(s.queue, (failed_item(w, s, Dead(drop=True)),)), ADMIN, HERE),
    Sample("put with the id of another", lambda w, s: Put(s.queue, (NewItem(b"1", "a", source_id=ID),)), ADMIN, HERE),
    Sample("say that one works", lambda w, s: Register("worker", "me", b"{}", timeout=30), WORKS, ANY),
    Sample("say that one works for ever", lambda w, s: Register("worker", "me", b"{}"), ADMIN, ALL),
    Sample("tick", lambda w, s: Register("schedule", f"{s.queue}/task", b"{}"), WORKS, HERE),
    Sample(
        "tick and put", lambda w, s: Register("schedule", "own-jobs/t", b"", puts=(Put(s.queue, (ITEM,)),)), WORKS, HERE
    ),
    Sample("say how it was listed", lambda w, s: Register("poll", s.queue, b"{}", timeout=30), WORKS, HERE),
    Sample("say how it was listed for ever", lambda w, s: Register("poll", s.queue, b"{}"), ADMIN, ALL),
    Sample("ask for a listing", lambda w, s: Register("poll_request", s.queue, b"", timeout=30), PUTS, HERE),
    Sample("ask for a listing for ever", lambda w, s: Register("poll_request", s.queue, b""), ADMIN, ALL),
    Sample("put an object again", lambda w, s: Register("put_again", f"{s.queue}/digest", b"id"), WORKS, HERE),
    Sample("count a manual retry", lambda w, s: Register("manual_retries", s.queue, b"1"), WORKS, HERE),
    Sample("manage by a file", lambda w, s: Register("managed", s.queue, b"{}"), ADMIN, ALL),
    Sample(
        "say who exports secrets",
        lambda w, s: Register("disclosure", s.queue, b"", audit=AuditNote("mallory", "export")),
        ADMIN,
        HERE,
    ),
    Sample(
        "say who exports secrets of all queues",
        lambda w, s: Register("disclosure", "*", b"", audit=AuditNote("mallory", "export")),
        ADMIN,
        ALL,
    ),
    Sample(
        "say something else of a queue",
        lambda w, s: Register("disclosure", s.queue, b"", audit=AuditNote("mallory", "revoke_token")),
        ADMIN,
        ALL,
    ),
    Sample("register something", lambda w, s: Register("something", "x", b"{}"), ADMIN, ALL),
    Sample(
        "write into the audit that one works",
        lambda w, s: Register("worker", "me", b"{}", timeout=30, audit=AuditNote("mallory", "x")),
        ADMIN,
        ALL,
    ),
    Sample(
        "write into the audit that one leaves",
        lambda w, s: Unregister("worker", "me", AuditNote("mallory", "x")),
        ADMIN,
        ALL,
    ),
    Sample("say that one leaves", lambda w, s: Unregister("worker", "me"), WORKS, ANY),
    Sample("remove a schedule", lambda w, s: Unregister("schedule", f"{s.queue}/task"), WORKS, HERE),
    Sample("remove what is registered", lambda w, s: Unregister("something", "x"), ADMIN, ALL),
    Sample("import", lambda w, s: Import(s.queue, (w.broker.get(s.id),), "mallory"), ADMIN, HERE),
    Sample("receive", lambda w, s: Receive(s.queue, move_of(w, s), "there"), ADMIN, HERE),
    Sample("hold", lambda w, s: Hold((ItemId(s.id),), "mallory"), ON_CALL, HERE),
    Sample("hold by a queue's version", lambda w, s: Hold((), "mallory", queue_version=(s.queue, 1)), ON_CALL, HERE),
    Sample("unhold some", lambda w, s: Unhold("mallory", (ItemId(s.id),)), ON_CALL, HERE),
    Sample("unhold all", lambda w, s: Unhold("mallory"), ON_CALL, ALL),
    Sample("release what a breaker holds", lambda w, s: Unhold(f"breaker:{s.queue}:network"), ON_CALL, HERE),
    Sample("complete", lambda w, s: Complete(s.token), WORKS, HERE),
    Sample("complete and put", lambda w, s: Complete(w.sides[OWN].token, puts=(Put(s.queue, (ITEM,)),)), WORKS, HERE),
    Sample("fail", settled(RetryVerdict(5, Status.FAILED), failure=Failure("E", "text")), WORKS, HERE),
    Sample("fail for good", settled(Dead(DeadReason.FINAL_ERROR)), WORKS, HERE),
    Sample("bury to the dead queue", dead_to("dead_queue"), WORKS, HERE),
    Sample("bury to a queue where one may put", dead_to("third_queue"), WORKS, HERE),
    Sample("bury to another store", settled(Dead(to="x@there"), OutcomeKind.BURIED), ADMIN, HERE),
    Sample("drop what one works on", settled(Dead(drop=True)), ADMIN, HERE),
    Sample("lose one's own work at once", settled(RetryVerdict(), OutcomeKind.LOST, worker_is_gone=True), WORKS, HERE),
    Sample("sweep a lease", settled(RetryVerdict(), OutcomeKind.LOST), WORKS, HERE),
    Sample("return, judged", settled(RetryVerdict(), OutcomeKind.RETURNED), WORKS, HERE),
    Sample("hold what one works on", settled(RetryVerdict(held_by=("ann",)), OutcomeKind.RETURNED), ADMIN, HERE),
    Sample("return", lambda w, s: ReturnLease(s.token), WORKS, HERE),
    Sample("reply", lambda w, s: Reply(s.token, Result(b"1", "a")), WORKS, HERE),
    Sample("complete and reply", lambda w, s: Complete(s.token, reply=Result(b"1", "a")), WORKS, HERE),
    Sample("redrive with another queue for replies", lambda w, s: redriven(w.sides[OWN], s), ADMIN, HERE),
    Sample("extend", lambda w, s: Extend(s.token), WORKS, HERE),
    Sample("retry", changed(Verb.RETRY), ON_CALL, HERE),
    Sample("redrive", changed(Verb.REDRIVE, "letter_id"), ON_CALL, HERE),
    Sample("undo", changed(Verb.UNDO), ON_CALL, HERE),
    Sample("move away", changed(Verb.MOVE, to="own-third"), ON_CALL, HERE),
    Sample(
        "move to",
        lambda w, s: ManualChange(Verb.MOVE, (ManualTarget(ItemId(w.sides[OWN].id)),), "mallory", to=s.third_queue),
        ON_CALL,
        HERE,
    ),
    Sample("move to another store", changed(Verb.MOVE, to="x@there"), ADMIN, ALL),
    Sample("reschedule", changed(Verb.RESCHEDULE), ON_CALL, HERE),
    Sample("take as done", changed(Verb.DONE), ON_CALL, HERE),
    Sample("archive", changed(Verb.ARCHIVE, "letter_id"), ON_CALL, HERE),
    Sample("restore", changed(Verb.RESTORE, "letter_id"), ON_CALL, HERE),
    Sample("fail by hand", judged(Verb.FAIL), ON_CALL, HERE),
    Sample("bury by hand", judged(Verb.BURY), ON_CALL, HERE),
    Sample("drop", changed(Verb.DROP), ADMIN, HERE),
    Sample("purge", changed(Verb.PURGE, "letter_id"), ADMIN, HERE),
    Sample("archive many", started(Verb.ARCHIVE), ON_CALL, HERE),
    # Dead letters of a dead queue go back to wherever they died.
    Sample("redrive many", started(Verb.REDRIVE), ON_CALL, ALL),
    Sample(
        "redrive many to",
        lambda w, s: StartOperation(
            verb=Verb.REDRIVE, where=Filter(queue="own-dead"), actor="mallory", to=s.third_queue
        ),
        ON_CALL,
        HERE,
    ),
    Sample("undo many", started(Verb.UNDO), ON_CALL, ALL),
    Sample("purge many", started(Verb.PURGE), ADMIN, HERE),
    Sample("redrive all", lambda w, s: StartOperation(verb=Verb.REDRIVE, where=Filter(), actor="m"), ON_CALL, ALL),
    Sample("step", lambda w, s: StepOperation(s.operation, 0), ON_CALL, HERE),
    Sample("step a purge", lambda w, s: StepOperation(s.purge, 0), ADMIN, HERE),
    Sample("cancel", lambda w, s: SetOperation(s.operation, "m", OperationStatus.CANCELLED), ON_CALL, HERE),
    Sample("cancel a purge", lambda w, s: SetOperation(s.purge, "m", OperationStatus.CANCELLED), ON_CALL, HERE),
    Sample("resume", lambda w, s: SetOperation(s.operation, "m", OperationStatus.RUNNING), ON_CALL, HERE),
    Sample("resume a purge", lambda w, s: SetOperation(s.purge, "m", OperationStatus.RUNNING), ADMIN, HERE),
    Sample("hasten a purge", lambda w, s: SetOperation(s.purge, "m", rate=5.0), ADMIN, HERE),
    Sample("promote", lambda w, s: Promote(), ADMIN, ALL),
    Sample("expire", lambda w, s: Expire(ItemId(s.id), Dead(DeadReason.EXPIRED), version_of(w, s)), ADMIN, HERE),
    Sample("clean", lambda w, s: ApplyRetention(), ADMIN, ALL),
    Sample("finish a move", lambda w, s: FinishMove((ItemId(s.id),)), ADMIN, ALL),
    Sample("close a move", lambda w, s: CloseMove(s.queue, "there", (ItemId(s.id),)), ADMIN, HERE),
    Sample("lease", lambda w, s: LeaseItems(s.queue, 1), WORKS, HERE),
    Sample("lease by id", lambda w, s: LeaseByIds((ItemId(s.id),)), WORKS, HERE),
    Sample("lease the dead", lambda w, s: LeaseByIds((ItemId(s.letter_id),), include_dead=True), ADMIN, HERE),
    Sample("see a queue", lambda w, s: GetQueue(s.queue), ALL_ROLES, HERE),
    Sample("list queues", lambda w, s: ListQueues(), ALL_ROLES, ANY),
    Sample("see counts", lambda w, s: GetStats(s.queue), f"{CAPTURES} viewer operator", HERE),
    Sample("list counts", lambda w, s: ListStats(), LOOKS, ANY),
    Sample("list some counts", lambda w, s: ListStats((s.queue,)), LOOKS, ANY),
    Sample("see an item", lambda w, s: GetItem(ItemId(s.id)), f"requester {LOOKS}", HERE),
    Sample("see items", lambda w, s: GetItems((ItemId(s.id),)), f"requester {LOOKS}", ANY),
    Sample("find", lambda w, s: FindItems(Filter(queue=s.queue)), LOOKS, HERE),
    Sample("find everywhere", lambda w, s: FindItems(Filter()), LOOKS, ALL),
    Sample("plan", lambda w, s: FindPlanSubjects(Filter(queue=s.queue)), LOOKS, HERE),
    Sample("plan everywhere", lambda w, s: FindPlanSubjects(Filter()), LOOKS, ALL),
    Sample("plan by words", lambda w, s: FindPlanSubjects(Filter(queue=s.queue, words="swordfish")), ON_CALL, HERE),
    Sample("search words", lambda w, s: FindItems(Filter(queue=s.queue, words="swordfish")), ON_CALL, HERE),
    Sample("search headers", lambda w, s: CountItems(Filter(queue=s.queue, headers={"a": "b"})), ON_CALL, HERE),
    Sample("count", lambda w, s: CountItems(Filter(queue=s.queue)), LOOKS, HERE),
    Sample("count everywhere", lambda w, s: CountItems(Filter()), LOOKS, ALL),
    Sample("group", lambda w, s: ListGroups(s.queue), LOOKS, HERE),
    Sample("group all", lambda w, s: ListGroups(), LOOKS, ALL),
    Sample("follow a queue", lambda w, s: ReadFeed(queue=s.queue), LOOKS, HERE),
    Sample("follow", lambda w, s: ReadFeed(), LOOKS, ANY),
    Sample("find by key", lambda w, s: GetItemsByKey(s.queue, ("key",)), ON_CALL, HERE),
    Sample("ask who has a key", lambda w, s: GetIdempotencyOwners(s.queue, ("key",)), ON_CALL, HERE),
    Sample("see an operation", lambda w, s: GetOperation(s.operation), LOOKS, HERE),
    Sample("list operations", lambda w, s: ListOperations(), LOOKS, ANY),
    Sample("ask what is overdue", lambda w, s: GetOverdue(s.queue), WORKS, HERE),
    Sample("ask what is overdue anywhere", lambda w, s: GetOverdue(), WORKS, ALL),
    Sample("see a lease", lambda w, s: GetLease(s.token), WORKS, HERE),
    Sample("see leases", lambda w, s: GetLeases((s.token,)), WORKS, ANY),
    Sample("see the item of a lease", lambda w, s: GetLeasedItem(s.token), WORKS, HERE),
    Sample("see what one holds", lambda w, s: ListWorkerLeases("1"), WORKS, ANY),
    Sample("read a result", lambda w, s: GetResult(ItemId(s.done_id)), AWAITS, ANY),
    Sample("list workers", lambda w, s: ListRegistrations("worker"), "consumer viewer operator admin", ANY),
    Sample("read a schedule", lambda w, s: ListRegistrations("schedule"), "consumer viewer operator admin", ANY),
    Sample("see listings", lambda w, s: ListRegistrations("poll"), "consumer viewer operator admin", ANY),
    Sample("see requests", lambda w, s: ListRegistrations("poll_request"), "consumer viewer operator admin", ANY),
    Sample(
        "see what was put again", lambda w, s: ListRegistrations("put_again"), "consumer viewer operator admin", ANY
    ),
    Sample(
        "see manual retries",
        lambda w, s: ListRegistrations("manual_retries", s.queue),
        f"{CAPTURES} viewer operator",
        HERE,
    ),
    Sample("ask who manages", lambda w, s: ListRegistrations("managed", s.queue), LOOKS, HERE),
    Sample(
        "ask what is captured",
        lambda w, s: ListRegistrations("capture", s.queue),
        f"{CAPTURES} viewer operator",
        HERE,
    ),
    Sample("list what is captured", lambda w, s: ListRegistrations("capture"), LOOKS, ALL),
    Sample("list what is managed", lambda w, s: ListRegistrations("managed"), LOOKS, ALL),
    Sample("list what is registered", lambda w, s: ListRegistrations("something"), LOOKS, ALL),
    Sample("read the audit", lambda w, s: ListAudit(), LOOKS, ALL),
    Sample("list destinations", lambda w, s: ListMoveTargets(), LOOKS, ALL),
    Sample("list moves", lambda w, s: ListMoves(), LOOKS, ALL),
    Sample("list open moves", lambda w, s: ListOpenMoves("there"), LOOKS, ALL),
    Sample("ask what is due", lambda w, s: GetNextDue(), "consumer viewer operator admin", ANY),
)


def answered(s: Side) -> NewItem:
    return NewItem(b"1", "application/json", {REPLY_TO: s.queue})


def redriven(own: Side, s: Side) -> ManualChange:
    target = ManualTarget(ItemId(own.letter_id), headers={REPLY_TO: s.queue})
    return ManualChange(Verb.REDRIVE, (target,), "me")


def failed_item(w: World, s: Side, verdict: Dead) -> NewItem:
    return NewItem(b"1", "application/json", failure=Failure("E", "text"), verdict=verdict, version=version_of(w, s))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def is_let_in(world: World, sample: Sample, principal: Principal, side: str) -> bool:
    (answer,) = world.authorize(principal, sample.make(world, world.sides[side]))
    if isinstance(answer, RedriveError):
        assert isinstance(answer, REFUSALS), answer
        return False
    return True


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.what)
def test_call_is_let_in_for_those_who_may(sample: Sample, world: World) -> None:
    for role, side in product(Role, (OWN, FOREIGN)):
        may = role in sample.roles.split()
        assert is_let_in(world, sample, everywhere(role), side) is may, (role, side)
        assert not is_let_in(world, sample, in_another_namespace(role), side), (role, side)
        within = {HERE: side == OWN, ALL: False, ANY: True}[sample.where]
        assert is_let_in(world, sample, limited(role), side) is (may and within), (role, side)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.what)
def test_tokens_namespace_is_for_admins_alone(sample: Sample, world: World) -> None:
    for role in Role:
        call = sample.make(world, world.sides[OWN])
        (answer,) = world.authorize(everywhere(role), call, namespace=TOKENS_NAMESPACE)
        assert isinstance(answer, RedriveError) is (role is not Role.ADMIN)


def test_tokens_are_written_by_admins_alone(world: World) -> None:
    calls = (Register("token", "x", b"{}"), Unregister("token", "x"), ListRegistrations("token"))
    for role in Role:
        answers = world.authorize(everywhere(role), *calls, namespace=TOKENS_NAMESPACE)
        assert all(isinstance(answer, Forbidden) is (role is not Role.ADMIN) for answer in answers)
        answers = world.authorize(limited(role), *calls, namespace=TOKENS_NAMESPACE)
        assert all(isinstance(answer, Forbidden) for answer in answers)
    elsewhere = world.authorize(everywhere(Role.ADMIN), *calls[:2])
    assert all(isinstance(answer, InvalidInput) for answer in elsewhere)


def test_call_with_an_actor_or_a_worker_is_signed_by_the_caller(world: World) -> None:
    """Whatever its sender wrote there. No call can be forgotten: it is signed because it has the field."""
    signed: set[str] = set()
    for sample in SAMPLES:
        call: Any = sample.make(world, world.sides[OWN])
        names = [name for name in ("actor", "worker") if name in call.__struct_fields__]
        forged = msgspec.structs.replace(call, **dict.fromkeys(names, "mallory"))
        (answer,) = world.authorize(everywhere(Role.ADMIN), forged)
        assert all(getattr(answer, name).split("/")[0] == "ann" for name in names), answer
        signed |= {type(call).__name__ for _ in names}
    assert {"UpdateQueue", "SetBreakers", "ManualChange", "Import", "LeaseItems", "ListWorkerLeases"} <= signed


def test_every_call_and_query_is_in_the_tables() -> None:
    calls, queries = set(typing.get_args(Call)), set(typing.get_args(Query))
    assert set(CALL_PERMISSIONS) == calls | queries
    assert set(VALIDATORS) | {StartOperation} == calls
    world = World()
    assert {type(sample.make(world, world.sides[OWN])) for sample in SAMPLES} == calls | queries
    world.close()


def test_namespace_of_the_samples_is_one_of_the_callers() -> None:
    assert everywhere(Role.VIEWER).may_enter(NAMESPACE)
    assert not in_another_namespace(Role.ADMIN).may_enter(NAMESPACE)
