"""The guard: who stands in the audit, what is hidden, what is filtered, and what a caller cannot do by clever calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.access.world import FOREIGN, OWN, SECRET, World, everywhere, limited

from redrive import Dead, Failure, Filter, RedriveError, RetryVerdict, Verb, connect
from redrive.auth.principal import UNAUTHENTICATED_ADMIN, Principal, Role
from redrive.auth.result_filter import filter_result, visible_result, withheld_tokens
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import ManualChange, ManualTarget, Register, SetPaused, StartOperation
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import Complete, LeaseByIds, LeaseItems, NewItem, Put, Reply, Settle, StaleSettings
from redrive.contract.maintenance_calls import Import
from redrive.contract.queries import (
    FindItems,
    FindPlanSubjects,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetOverdue,
    GetResult,
    ListAudit,
    ListGroups,
    ListMoves,
    ListOperations,
    ListQueues,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    Overdue,
    ReadFeed,
)
from redrive.contract.replies import REPLY_ERROR, REPLY_FOR, REPLY_TO
from redrive.errors import Forbidden, InvalidInput, InvalidName, ItemActive, ItemNotFound, LeaseLost
from redrive.model.death import DeadReason
from redrive.model.duration import HOUR
from redrive.model.ids import ItemId, Token
from redrive.model.item import KeptResult, Lease, Overrides, Result, Status
from redrive.model.judge import OutcomeKind
from redrive.model.masked_item import MASKED_TYPE
from redrive.model.retry_policy import NEVER, Backoff, BackoffKind, RetryPolicy
from redrive.model.worker_info import TASK_HEADER
from redrive.store import Commit
from redrive.task.result_handle import is_dead_letter
from redrive.testing import FakeClock

COMMITTED = get_args(Call)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


async def made(world: World, principal: Principal, call: Any) -> Any:
    """What a caller gets for a call: the result, or the refusal."""
    (let,) = world.authorize(principal, call)
    if isinstance(let, RedriveError):
        return let
    core = world.broker.core
    if isinstance(let, COMMITTED):
        commit: Commit = core.store.commit([let])
        return world.shown(principal, call, commit.results[0])
    try:
        return world.shown(principal, call, core.read(let))
    except RedriveError as refusal:
        return refusal


async def test_audit_has_the_name_of_the_token(world: World) -> None:
    own = world.sides[OWN]
    await made(world, everywhere(Role.OPERATOR), SetPaused(own.queue, True, "somebody-else"))
    await made(
        world,
        everywhere(Role.OPERATOR),
        ManualChange(Verb.MOVE, (ManualTarget(ItemId(own.id)),), "root", to=own.third_queue),
    )
    await made(world, everywhere(Role.OPERATOR), StartOperation(verb=Verb.RETRY, where=Filter(), actor="root"))
    assert [entry.actor for entry in world.broker.audit(3)] == ["ann", "ann", "ann"]


async def test_without_tokens_a_call_names_its_actor(world: World) -> None:
    await made(world, UNAUTHENTICATED_ADMIN, SetPaused(world.sides[OWN].queue, True, "bob"))
    assert world.broker.audit(1)[0].actor == "bob"


async def test_actor_that_cannot_be_one_is_refused(world: World) -> None:
    assert isinstance(await made(world, UNAUTHENTICATED_ADMIN, SetPaused("own-jobs", True, "a\0b")), InvalidInput)


async def test_workers_are_called_after_their_token(world: World) -> None:
    consumer = everywhere(Role.CONSUMER)
    leased = await made(world, consumer, LeaseItems("own-jobs", 1, "host-1"))
    assert leased.leases[0].worker == "ann/host-1"
    assert [lease.id for lease in await made(world, consumer, ListWorkerLeases("host-1"))] == [leased.leases[0].id]
    await made(world, consumer, Register("worker", "host-1", b"{}", timeout=30_000_000))
    assert await made(world, consumer, ListRegistrations("worker", "ann/host-1"))


async def test_consumer_leases_by_id_under_the_name_of_its_token(world: World) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    call = LeaseByIds((ItemId(own.id), ItemId(own.active_id), ItemId("0" * 32)), "host-1")
    lease, active, missing = await made(world, limited(Role.CONSUMER), call)
    assert (lease.worker, type(active), type(missing)) == ("ann/host-1", ItemActive, ItemNotFound)
    refusal = await made(world, limited(Role.CONSUMER), LeaseByIds((ItemId(own.id), ItemId(foreign.id))))
    assert isinstance(refusal, ItemNotFound)
    assert world.broker.get(foreign.id).status is Status.PENDING


async def test_lease_of_an_item_that_moved_meanwhile_is_withheld(world: World) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    away, kept = world.broker.lease_by_id([foreign.id, own.id])
    assert isinstance(away, Lease)
    assert isinstance(kept, Lease)
    dead = msgspec.structs.replace(kept, dead_reason=DeadReason.POLICY)
    call = LeaseByIds((ItemId("1" * 32), ItemId(own.id), ItemId("2" * 32), ItemId("3" * 32)))
    caller, results = world.caller(limited(Role.CONSUMER)), (away, kept, dead, ItemNotFound("3"))
    assert withheld_tokens(caller, [call], [results]) == [away.token, dead.token]
    first, second, third, _ = filter_result(caller, call, results)
    assert (second, type(first), type(third)) == (kept, ItemNotFound, ItemNotFound)
    assert (first.id, third.id) == ("1" * 32, "2" * 32)
    assert foreign.queue not in str(first)
    for everyone in (everywhere(Role.ADMIN), limited(Role.CONSUMER, Role.OPERATOR)):
        assert withheld_tokens(world.caller(everyone), [call], [results[1:]]) == []
    assert withheld_tokens(caller, [Put(own.queue, ())], [()]) == []


async def test_nobody_sees_what_another_token_holds(world: World) -> None:
    mallory = Principal("mallory", frozenset({Role.CONSUMER}))
    for worker in ("1", "ann/1"):
        assert await made(world, mallory, ListWorkerLeases(worker)) == ()


async def test_nobody_ends_the_work_of_another_token_at_once(world: World) -> None:
    mallory = Principal("mallory", frozenset({Role.CONSUMER}))
    own = world.sides[OWN]
    version = world.broker.get_queue(own.queue).version
    call = Settle(own.token, OutcomeKind.LOST, RetryVerdict(), version, worker_is_gone=True)
    assert isinstance(await made(world, mallory, call), Forbidden)
    assert world.broker.get(own.active_id).status is Status.ACTIVE


@pytest.mark.parametrize("principal", [everywhere(Role.CONSUMER), limited(Role.CONSUMER)], ids=["all", "some"])
async def test_consumer_gets_no_tokens_of_overdue_leases_but_has_them_swept(world: World, principal: Principal) -> None:
    world.clock.advance("1h")
    leased = await made(world, principal, LeaseItems("own-jobs", 10))
    assert leased.overdue
    assert await made(world, principal, GetOverdue("own-jobs")) == ()
    leased = await made(world, principal, LeaseItems("own-jobs", 10))
    assert {lease.id for lease in leased.leases} >= {world.sides[OWN].active_id}
    assert world.broker.get(world.sides[OWN].active_id).counters.losses == 1


async def test_tokens_of_overdue_leases_are_not_told_where_there_are_too_many_to_sweep_at_once(world: World) -> None:
    world.broker.put_many("own-third", range(MAINTENANCE_BATCH + 5))
    for _ in range(2):
        world.broker.lease("own-third", limit=1000)
    world.clock.advance("1h")
    assert await made(world, limited(Role.CONSUMER), GetOverdue("own-third")) == ()
    assert len(world.broker.core.read(GetOverdue("own-third"))) == 5


async def test_admin_is_told_what_is_overdue(world: World) -> None:
    world.clock.advance("1h")
    found = await made(world, everywhere(Role.ADMIN), GetOverdue("own-jobs"))
    assert [type(each) for each in found] == [Overdue]


async def test_work_is_settled_by_tokens_of_own_queues_only(world: World) -> None:
    call = Settle(world.sides[FOREIGN].token, OutcomeKind.RELEASED, RetryVerdict(), 1)
    refusal = await made(world, limited(Role.CONSUMER), call)
    # As if it were completed: not even its status is told.
    assert isinstance(refusal, LeaseLost)
    assert refusal.status is None
    leased = await made(world, limited(Role.CONSUMER), LeaseItems("own-jobs", 1))
    version = world.broker.get_queue("own-jobs").version
    settled = await made(
        world, limited(Role.CONSUMER), Settle(leased.leases[0].token, OutcomeKind.RELEASED, RetryVerdict(), version)
    )
    assert settled.status is Status.PENDING


async def test_verdict_by_settings_that_nobody_has_made_yet_is_refused(world: World) -> None:
    call = Settle(world.sides[OWN].token, OutcomeKind.FAILED, Dead(drop=True), 10**6)
    assert isinstance(await made(world, everywhere(Role.CONSUMER), call), InvalidInput)


async def test_verdict_by_older_settings_is_stale_and_not_forbidden(world: World) -> None:
    own = world.sides[OWN]
    version = world.broker.get_queue(own.queue).version
    world.broker.update_queue(own.queue, on_dead="drop", dead_queue=None)
    call = Settle(own.token, OutcomeKind.FAILED, Dead(to=world.sides[FOREIGN].dead_queue), version)
    assert isinstance(await made(world, limited(Role.CONSUMER), call), StaleSettings)


async def test_consumer_drops_where_the_queue_says_so(world: World) -> None:
    own = world.sides[OWN]
    queue = world.broker.update_queue(own.queue, on_dead="drop", dead_queue=None)
    call = Settle(own.token, OutcomeKind.FAILED, Dead(drop=True), queue.version)
    settled = await made(world, limited(Role.CONSUMER), call)
    assert settled.status is None


async def test_consumer_does_not_drop_where_the_dead_have_a_queue(world: World) -> None:
    own = world.sides[OWN]
    queue = world.broker.update_queue(own.queue, on_dead="drop")
    call = Settle(own.token, OutcomeKind.FAILED, Dead(drop=True), queue.version)
    assert isinstance(await made(world, limited(Role.CONSUMER), call), Forbidden)


async def test_dead_go_to_the_dead_queue_though_the_caller_may_not_put_there(world: World) -> None:
    own = world.sides[OWN]
    consumer = Principal("ann", frozenset({Role.CONSUMER}), queues=(own.queue,))
    version = world.broker.get_queue(own.queue).version
    settled = await made(world, consumer, Settle(own.token, OutcomeKind.BURIED, Dead(to=own.dead_queue), version))
    assert settled.queue == own.dead_queue
    leased = await made(world, consumer, LeaseItems(own.queue, 1))
    call = Settle(leased.leases[0].token, OutcomeKind.BURIED, Dead(to=own.third_queue), version)
    assert isinstance(await made(world, consumer, call), Forbidden)


async def test_consumer_replies_where_the_sender_may_put_and_the_consumer_may_not(world: World) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    consumer = Principal("ann", frozenset({Role.CONSUMER}), queues=(own.queue,))
    new = NewItem(b"1", "application/json", {REPLY_TO: foreign.queue})
    assert isinstance(await made(world, consumer, Put(own.queue, (new,))), Forbidden)
    before = world.broker.stats(foreign.queue).pending
    assert not isinstance(await made(world, everywhere(Role.REQUESTER), Put(own.queue, (new,))), RedriveError)
    leased = (await made(world, consumer, LeaseItems(own.queue, 100))).leases[-1]
    assert leased.headers == {REPLY_TO: foreign.queue}
    assert not isinstance(await made(world, consumer, Reply(leased.token, Result(b"1", "a"))), RedriveError)
    settled = await made(world, consumer, Complete(leased.token, reply=Result(b"2", "a")))
    assert settled.reply_refused is None
    assert world.broker.stats(foreign.queue).pending == before + 2


@pytest.mark.parametrize("address", ["x@", "@x", "a@b@c", "a b", ""])
async def test_address_that_no_queue_can_have_is_refused(world: World, address: str) -> None:
    own, admin = world.sides[OWN], everywhere(Role.ADMIN)
    headers = {REPLY_TO: address}
    item = msgspec.structs.replace(world.broker.get(own.letter_id, redacted=False), headers=headers)
    for call in (
        Put(own.queue, (NewItem(b"1", "application/json", headers),)),
        ManualChange(Verb.REDRIVE, (ManualTarget(ItemId(own.letter_id), headers=headers),), "me"),
        Import(own.queue, (item,), "me"),
    ):
        assert isinstance(await made(world, admin, call), InvalidName)


@pytest.mark.parametrize("name", [REPLY_FOR, REPLY_ERROR, "redrive-anything"])
async def test_reply_is_not_forged_by_a_put(world: World, name: str) -> None:
    forged = Put(world.sides[OWN].queue, (NewItem(b"1", "application/json", {name: "x"}),))
    assert isinstance(await made(world, everywhere(Role.ADMIN), forged), InvalidName)


def holds_secret(value: Any) -> bool:
    return SECRET.encode() in msgspec.msgpack.encode(value, enc_hook=str)


LOOKS = (
    lambda s: GetItem(ItemId(s.id)),
    lambda s: GetItem(ItemId(s.done_id)),
    lambda s: GetItem(ItemId(s.letter_id)),
    lambda s: GetItems((ItemId(s.id), ItemId(s.done_id), ItemId(s.letter_id))),
    lambda s: FindItems(Filter(queue=s.queue, status=None)),
    lambda s: FindItems(Filter(queue=s.dead_queue)),
    lambda s: FindPlanSubjects(Filter(queue=s.queue, status=None)),
    lambda s: ReadFeed(queue=s.queue),
    lambda s: ListGroups(s.dead_queue),
)


@pytest.mark.parametrize("look", LOOKS, ids=range(len(LOOKS)))
async def test_payloads_are_for_those_who_may_see_them(world: World, look: Any) -> None:
    query = look(world.sides[OWN])
    for principal in (everywhere, limited):
        seen = await made(world, principal(Role.VIEWER), query)
        assert not isinstance(seen, RedriveError)
        assert not holds_secret(seen)
        if isinstance(query, GetItem | GetItems | FindItems):
            assert holds_secret(await made(world, principal(Role.OPERATOR), query))


async def test_keys_and_tasks_of_plans_are_for_those_who_may_see_payloads(world: World) -> None:
    queue = world.sides[OWN].queue
    id = world.broker.put(queue, 1, idempotency_key="order 7", headers={TASK_HEADER: "app.pay"}).id
    query = FindPlanSubjects(Filter(queue=queue, status=None, ids=(ItemId(id),)))
    for role, seen in ((Role.VIEWER, (None, None)), (Role.OPERATOR, ("order 7", "app.pay"))):
        (subject,) = (await made(world, everywhere(role), query)).items
        assert (subject.idempotency_key, subject.task) == seen


@pytest.mark.parametrize("role", [Role.REQUESTER, Role.VIEWER, Role.OPERATOR])
async def test_items_of_other_queues_are_not_among_many(world: World, role: Role) -> None:
    ids = tuple(ItemId(id) for side in (OWN, FOREIGN) for id in (world.sides[side].id, world.sides[side].done_id))
    found = await made(world, limited(role), GetItems(ids))
    assert [item is not None for item in found] == [True, True, False, False]
    assert list(found[:2]) == [await made(world, limited(role), GetItem(id)) for id in ids[:2]]


async def test_items_of_keys_are_for_those_who_may_see_keys_and_where_they_are(world: World) -> None:
    keys = tuple(f"{SECRET}-{OWN}-{what}" for what in ("pending", "dead"))
    query = GetItemsByKey(world.sides[OWN].queue, keys)
    for role in (Role.REQUESTER, Role.VIEWER):
        assert isinstance(await made(world, everywhere(role), query), Forbidden)
    assert isinstance(
        await made(world, limited(Role.OPERATOR), GetItemsByKey(world.sides[FOREIGN].queue, keys)), Forbidden
    )
    for principal in (everywhere, limited):
        found = await made(world, principal(Role.OPERATOR), query)
        assert [item.queue for item in found] == ["own-jobs", "own-dead"]
    world.broker.move(world.sides[OWN].id, world.sides[FOREIGN].queue)
    moved, seen = await made(world, limited(Role.OPERATOR), query)
    assert moved == await made(world, limited(Role.OPERATOR), GetItem(ItemId(world.sides[OWN].id)))
    assert (moved.content_type, seen.queue, holds_secret(moved)) == (MASKED_TYPE, "own-dead", False)


async def test_hidden_item_says_that_it_is_hidden(world: World) -> None:
    item = await made(world, everywhere(Role.VIEWER), GetItem(ItemId(world.sides[OWN].done_id)))
    assert (item.payload, item.content_type, item.headers, item.idempotency_key) == (b"", MASKED_TYPE, {}, None)
    assert item.result.content_type == MASKED_TYPE


async def test_secrets_in_errors_are_hidden_from_viewers(world: World) -> None:
    world.broker.create_queue("own-fails")
    id = world.broker.put("own-fails", 1).id
    (lease,) = world.broker.lease("own-fails")
    world.broker.fail(lease, "cannot log in with password=hunter2hunter2")
    viewer = everywhere(Role.VIEWER)
    find, plan = (kind(Filter(queue="own-fails")) for kind in (FindItems, FindPlanSubjects))
    for query in (GetItem(ItemId(id)), find, plan, ReadFeed(), ListGroups()):
        assert b"hunter2" not in msgspec.msgpack.encode(await made(world, viewer, query))
    assert b"hunter2" in msgspec.msgpack.encode(await made(world, everywhere(Role.OPERATOR), GetItem(ItemId(id))))


async def test_moves_are_listed_without_payloads(world: World) -> None:
    core = world.broker.core
    id = ItemId(world.sides[OWN].id)
    core.store.commit([ManualChange(Verb.MOVE, (ManualTarget(id),), "me", to="x@there")])
    for role in (Role.VIEWER, Role.OPERATOR):
        (move,) = await made(world, everywhere(role), ListMoves())
        assert holds_secret(move) is (role is Role.OPERATOR)


async def test_lists_are_about_own_queues_only(world: World) -> None:
    viewer = limited(Role.VIEWER)
    assert {queue.name for queue in await made(world, viewer, ListQueues())} == {"own-jobs", "own-dead", "own-third"}
    for query in (ListStats(), ListStats(("own-jobs", "own-dead", "own-third", "foreign-jobs"))):
        assert {stats.queue for stats in await made(world, viewer, query)} == {"own-jobs", "own-dead", "own-third"}
    page = await made(world, viewer, ReadFeed())
    assert {entry.queue for entry in page.entries} == {"own-jobs"}
    assert page.last >= max(entry.number for entry in world.broker.feed().entries)
    own = world.sides[OWN]
    assert {each.id for each in await made(world, viewer, ListOperations())} == {own.operation, own.purge}
    for kind, name in (("worker", "own-worker"), ("schedule", "own-jobs/task"), ("poll", "own-jobs")):
        assert [each.name for each in await made(world, viewer, ListRegistrations(kind))] == [name]


@pytest.mark.parametrize("role", [Role.REQUESTER, Role.OPERATOR])
async def test_result_is_for_those_who_may_read_results_of_its_queue_whether_the_item_is_there_or_not(
    world: World, role: Role
) -> None:
    own, foreign = world.sides[OWN], world.sides[FOREIGN]
    for id in (own.done_id, own.gone_id, foreign.done_id, foreign.gone_id):
        assert holds_secret(await made(world, everywhere(role), GetResult(ItemId(id))))
    for id in (own.done_id, own.gone_id):
        assert holds_secret(await made(world, limited(role), GetResult(ItemId(id))))
    for id in (foreign.done_id, foreign.gone_id, foreign.id, "ab" * 16):
        assert await made(world, limited(role), GetResult(ItemId(id))) is None


@pytest.mark.parametrize("keep_completed", ["0s", "1h"])
@pytest.mark.parametrize(("put_to", "completed_in"), [("own-jobs", "foreign-third"), ("foreign-jobs", "own-third")])
async def test_result_of_an_item_that_moved_is_for_both_queues_and_names_none_of_others(
    world: World, put_to: str, completed_in: str, keep_completed: str
) -> None:
    world.broker.update_queue(completed_in, keep_completed=keep_completed)
    id = world.broker.put(put_to, 1, priority=9).id
    world.broker.move(id, completed_in)
    (lease,) = world.broker.lease(completed_in)
    world.broker.complete(lease, result=SECRET, keep_result="1h")
    for each in (id, lease.id):
        for principal in (everywhere(Role.REQUESTER), everywhere(Role.ADMIN)):
            seen = await made(world, principal, GetResult(ItemId(each)))
            assert (seen.value, seen.queue, seen.put_to) == (SECRET, completed_in, put_to)
        seen = await made(world, limited(Role.REQUESTER), GetResult(ItemId(each)))
        assert (seen.value, seen.put_to) == (SECRET, None)
        assert seen.queue in (put_to, completed_in)
        assert seen.queue.startswith(OWN)
    elsewhere = Principal("ann", frozenset({Role.REQUESTER}), queues=("own-dead",))
    assert await made(world, elsewhere, GetResult(ItemId(id))) is None


def test_result_that_names_no_queue_is_for_those_let_into_all_queues(world: World) -> None:
    """It was kept by an earlier version."""
    kept = KeptResult(b"1", "application/json", "")
    assert visible_result(world.caller(everywhere(Role.REQUESTER)), kept) == kept
    assert visible_result(world.caller(limited(Role.REQUESTER)), kept) is None


async def test_who_awaits_an_item_sees_its_result_and_how_it_stands_and_nothing_else(world: World) -> None:
    own = world.sides[OWN]
    for principal in (everywhere(Role.REQUESTER), limited(Role.REQUESTER)):
        for id in (own.id, own.active_id, own.letter_id):
            item = await made(world, principal, GetItem(ItemId(id)))
            assert not holds_secret(item)
            assert (item.payload, item.headers, item.worker, item.idempotency_key) == (b"", {}, None, None)
        done = await made(world, principal, GetItem(ItemId(own.done_id)))
        assert holds_secret(done.result)
        assert not holds_secret(msgspec.structs.replace(done, result=None))
        assert holds_secret(await made(world, principal, GetResult(ItemId(own.done_id))))
    with_viewer = await made(world, everywhere(Role.REQUESTER, Role.VIEWER), GetItem(ItemId(own.done_id)))
    assert holds_secret(with_viewer.result)
    assert not holds_secret(msgspec.structs.replace(with_viewer, result=None))


async def test_who_awaits_an_item_learns_what_it_died_of_and_not_where_it_went(world: World) -> None:
    world.broker.create_queue("own-sent", dead_queue="foreign-dead")
    id = world.broker.put("own-sent", 1).id
    (lease,) = world.broker.lease("own-sent", worker="host-1")
    cause = ValueError("cannot log in with password=hunter2hunter2")
    world.broker.fail(lease, cause, final=True)
    assert world.broker.get(id).queue == "foreign-dead"
    for role in (Role.REQUESTER, Role.OPERATOR):
        item = await made(world, limited(role), GetItem(ItemId(id)))
        assert (item.queue, item.death.reason, item.last_failure.type) == ("own-sent", "final_error", "ValueError")
        assert is_dead_letter(item)
        said = msgspec.msgpack.encode(item)
        for hidden in (b"foreign", b"hunter2", b"host-1", b"Traceback"):
            assert hidden not in said
    assert isinstance(await made(world, limited(Role.VIEWER), GetItem(ItemId(id))), ItemNotFound)


async def test_audit_is_redacted_for_viewers(world: World) -> None:
    note = "password=hunter2hunter2"
    target = (ManualTarget(ItemId(world.sides[OWN].letter_id)),)
    await made(world, everywhere(Role.OPERATOR), ManualChange(Verb.REDRIVE, target, "x", note=note))
    assert b"hunter2" not in msgspec.msgpack.encode(await made(world, everywhere(Role.VIEWER), ListAudit()))


async def test_viewers_see_errors_by_the_rules_of_the_queue(world: World) -> None:
    queue = world.sides[OWN].queue
    world.broker.update_queue(queue, redact={"patterns": ["ACME-[a-z]{6}"]})
    world.broker.put(queue, 1)
    for lease in world.broker.lease(queue, limit=100):
        letter = world.broker.fail(lease, "see ACME-abcdef", final=True)
    looks = (FindItems(Filter()), FindPlanSubjects(Filter()), ListGroups(None, 100), ReadFeed())
    for call in (GetItem(ItemId(letter.id)), *looks):
        assert b"ACME-" in msgspec.msgpack.encode(await made(world, everywhere(Role.OPERATOR), call))
        assert b"ACME-" not in msgspec.msgpack.encode(await made(world, everywhere(Role.VIEWER), call))


@pytest.fixture
def world_on_file(tmp_path: Path) -> Iterator[World]:
    broker = connect(f"sqlite:///{tmp_path}/jobs.db", clock=FakeClock(), maintenance=False)
    world = World(broker.core)
    yield world
    world.close()


async def test_nobody_is_taken_at_his_word_that_an_item_is_plain(world_on_file: World) -> None:
    world = world_on_file
    item = NewItem(b"1", "text/plain", delay=60_000_000, idempotency_key="k", overrides=Overrides(3), is_plain=True)
    (receipt,) = await made(world, UNAUTHENTICATED_ADMIN, Put("own-jobs", (item,)))
    kept = world.broker.get(receipt.id)
    assert kept.idempotency_key == "k"
    assert kept.overrides == Overrides(3)
    assert kept.ready_at == kept.put_at + 60_000_000


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (Overrides(retry=RetryPolicy(3, Backoff(BackoffKind.LIST, delays=(1,) * 1001))), "a list of 1 to 1,000"),
        (Overrides(retry=RetryPolicy(3, by_type={"E": Backoff(BackoffKind.FUNCTION, function="no name")})), "function"),
        (Overrides(retry=RetryPolicy(3, by_type={f"E{n}": NEVER for n in range(5_000)})), "bytes as JSON"),
        (Overrides(2, retry=RetryPolicy(3)), r"max_attempts 2 is lower than retry\.attempts 3"),
        (Overrides(2**31), "max_attempts must be a whole number"),
        (Overrides(max_losses=-1), "max_losses must be a whole number"),
    ],
    ids=["list", "name", "size", "limit", "attempts", "losses"],
)
async def test_settings_of_an_item_are_checked_as_a_broker_does(
    world: World, overrides: Overrides, problem: str
) -> None:
    before = world.broker.stats("own-jobs")
    put = Put("own-jobs", (NewItem(b"1", "text/plain", overrides=overrides),))
    refused = await made(world, UNAUTHENTICATED_ADMIN, put)
    assert isinstance(refused, InvalidInput)
    assert re.search(problem, str(refused))
    item = msgspec.structs.replace(world.broker.get(world.sides[OWN].id), overrides=overrides)
    refused = await made(world, UNAUTHENTICATED_ADMIN, Import("own-jobs", (item,), "ann"))
    assert isinstance(refused, InvalidInput)
    assert re.search(problem, str(refused))
    assert world.broker.stats("own-jobs") == before


async def test_failures_are_cut_and_cleaned(world: World) -> None:
    own = world.sides[OWN]
    failure = Failure("E" * 10_000, "text\0" * 100_000, "trace\x1b[31m" * 100_000, fingerprint="f" * 10_000)
    version = world.broker.get_queue(own.queue).version
    await made(
        world,
        limited(Role.CONSUMER),
        Settle(own.token, OutcomeKind.FAILED, RetryVerdict(0, Status.FAILED), version, failure),
    )
    kept = world.broker.get(own.active_id).last_failure
    assert kept is not None
    assert len(msgspec.json.encode(kept)) < 64 * 1024
    assert "\0" not in kept.text


async def test_malformed_tokens_and_ids_are_told_apart_from_lost_ones(world: World) -> None:
    for token in ("", "x" * 48, "f" * 47):
        assert isinstance(
            await made(world, limited(Role.CONSUMER), Settle(Token(token), OutcomeKind.LOST, RetryVerdict(), 1)),
            InvalidInput,
        )
    gone: Lease = world.sides[OWN].lease
    world.broker.complete(gone)
    refusal = await made(world, limited(Role.CONSUMER), Settle(gone.token, OutcomeKind.LOST, RetryVerdict(), 1))
    assert isinstance(refusal, LeaseLost)


async def test_consumer_holds_items_for_open_breakers_of_the_queue_alone(world: World) -> None:
    own, broker = world.sides[OWN], world.broker
    caller = limited(Role.CONSUMER)
    foreign = f"breaker:{world.sides[FOREIGN].queue}:network"
    holder = f"breaker:{own.queue}:network"

    async def settle(name: str, caller: Principal = caller) -> Any:
        verdict = RetryVerdict(held_by=(name,))
        version = broker.get_queue(own.queue).version
        return await made(world, caller, Settle(own.token, OutcomeKind.FAILED, verdict, version, Failure("E", "no")))

    for name in ("ann", foreign, holder):
        assert isinstance(await settle(name), Forbidden)
    broker.open_breaker(own.queue, "network")
    assert isinstance(await settle("ann"), Forbidden)
    assert not isinstance(await settle(holder), RedriveError)
    assert broker.get(own.active_id).held_by == (holder,)


async def test_consumer_closes_the_gate_of_a_queue_that_asks_for_it_alone(world: World) -> None:
    own, broker, caller = world.sides[OWN], world.broker, limited(Role.CONSUMER)

    async def settle() -> Any:
        version, until = broker.get_queue(own.queue).version, Instant(world.clock.now() + HOUR)
        call = Settle(own.token, OutcomeKind.RETURNED, RetryVerdict(), version, Failure("E", "no"), close_until=until)
        return await made(world, caller, call)

    assert isinstance(await settle(), Forbidden)
    assert broker.get_queue(own.queue).gates == ()
    broker.update_queue(own.queue, retry_after="gate")
    assert not isinstance(await settle(), RedriveError)
    assert broker.get_queue(own.queue).gates
