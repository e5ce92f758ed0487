"""The table of routes: all JSON calls.

A row is a method of the broker, or a function that takes the request, with its permission and the form of its response.
Calls with special item formats, conditions, or pages limited by size have handlers in the other modules, which
take the whole call.
The OpenAPI document, the reference and the tests of every route with every role are generated from this table.
"""

from __future__ import annotations

from redrive.auth.principal import TOKENS_NAMESPACE, Permission
from redrive.broker.async_broker import AsyncBroker
from redrive.broker.flows.moves import PendingMove
from redrive.capture.task_view import Statistics, TaskView
from redrive.contract.queries import AuditEntry
from redrive.model.breaker import BreakerStatus
from redrive.model.operation import Operation
from redrive.model.queue import Queue
from redrive.model.worker_info import WorkerInfo
from redrive.server.responses import ExtendedItems, SettledItems, settled_answer
from redrive.server.route import Route
from redrive.server.routes import captured_tasks as capture
from redrive.server.routes import dead_letters, feed, items, leases, operations, produce, queues, settle, tokens
from redrive.server.routes.derivation import Answer, many, number, one, plain, row, whole
from redrive.wire.json_views import item_view

B = AsyncBroker
READ, READ_PAYLOADS, READ_RESULTS = Permission.READ, Permission.READ_PAYLOADS, Permission.READ_RESULTS
CONSUME, OPERATE, MANAGE = Permission.CONSUME, Permission.OPERATE, Permission.MANAGE
MANAGE_TOKENS = Permission.MANAGE_TOKENS

QUEUE = whole(Queue)
SETTLED = plain(SettledItems, settled_answer)
DELETED = number("removed", "Deleted", "How many items went with the queue.")
RELEASED = number("released", "BreakerClosed", "How many items were released.")
CHANGED = number("changed", "Changed", "How many items were changed.")
OPERATION = one("operation", Operation, "OperationAnswer", "The current state of an operation.")
OPERATIONS = many("operations", Operation, "Operations", "Operations, newest first.")
BREAKERS = many("breakers", BreakerStatus, "Breakers", "Breakers that are not closed.")
AUDIT = many("entries", AuditEntry, "Audit", "Who changed what, newest first.")
WORKERS = many("workers", WorkerInfo, "Workers", "The workers that are alive.")
MOVES = many("moves", PendingMove, "Moves", "Items that are moving to other stores.")
ITEMS, BULK = items.ItemsView, operations.BulkView
ID = "4f0c91a27b3d000000068f1c2a3b4800"
TOKEN = {"token": f"{ID}00112233445566aa"}
FAILED = {**TOKEN, "error": "the mail server refused"}
EMAILS = {"queue": "emails"}
TIMEOUTS = {**EMAILS, "error_type": "TimeoutError"}
LIMIT, DRY_RUN, WORKER = {"limit": 10}, {"dry_run": True}, {"worker": "worker-1"}
EXTENDED = {**EMAILS, "items": [TOKEN], "lease_timeout": "5m"}
MOVED = {"verb": "move", **EMAILS, "to": "slow-emails", **DRY_RUN}
PRODUCED = {"payload": {"to": "ann@example.com"}, "kind": "welcome"}
IMPORTED = {"source_id": ID, "payload": {"to": "ann"}}
FAILED_TASK = {"task_id": "wf_abc123", "task": {"type": "code_sweep"}, "error": "Connection timeout", "max_retries": 5}
NEW_TOKEN = {"name": "billing", "roles": ["producer"], "queues": ["invoices"], "expires_in": "90d"}

ROUTES: tuple[Route, ...] = (
    row(
        "queues.create", B.create_queue, MANAGE, QUEUE, example={"settings": {"max_attempts": 3, "lease_timeout": "1m"}}
    ),
    row("queues.update", B.update_queue, MANAGE, QUEUE),
    row("queues.list", queues.list_queues, READ, queues.QueuesView),
    row("queues.stats", queues.list_stats, READ, queues.StatsPageView),
    row("queues.info", queues.queue_info, READ, queues.InfoView),
    row("queues.pause", B.pause_queue, OPERATE, QUEUE),
    row("queues.resume", B.resume_queue, OPERATE, QUEUE),
    row("queues.delete", B.delete_queue, MANAGE, DELETED, example={"confirm": 0}),
    row("queue.stats", B.stats, READ, Answer(queues.StatsView, queues.stats_view)),
    row("queue.clear", queues.clear_queue, MANAGE, queues.Cleared, example={"statuses": ["pending"], **DRY_RUN}),
    row(
        "queue.produce",
        produce.produce,
        Permission.PUT,
        produce.Produced,
        example={**EMAILS, "items": [PRODUCED]},
        direct=produce.PUT_OF_ONE,
    ),
    row(
        "queue.lease",
        leases.lease,
        CONSUME,
        leases.LeasedItems,
        example={**EMAILS, **LIMIT, "wait": "20s", **WORKER},
        direct=leases.LEASE_OF_ONE,
    ),
    row("items.lease", leases.lease_by_id, CONSUME, leases.LeasedItems, example={"ids": [ID], **WORKER}),
    row(
        "queue.complete",
        settle.complete,
        CONSUME,
        SettledItems,
        example={**EMAILS, "items": [TOKEN]},
        direct=settle.COMPLETION_OF_ONE,
    ),
    row("queue.retry", settle.retry, CONSUME, SettledItems, example={**EMAILS, "items": [FAILED]}),
    row("queue.extend", settle.extend, CONSUME, ExtendedItems, example=EXTENDED),
    row("items.list", items.list_items, READ, ITEMS, example={**EMAILS, **LIMIT}),
    row("items.get", B.get, READ, plain(items.ItemView, item_view)),
    row("items.get_many", B.get_many, READ, Answer(items.FoundItemsView, items.found_view)),
    row("items.by_key", B.find_by_key, READ_PAYLOADS, Answer(items.ItemsByKeyView, items.found_view)),
    row("items.result", items.get_result, READ_RESULTS, items.ResultView),
    row("items.delete", B.drop, MANAGE, SETTLED),
    row("items.retry", B.retry, OPERATE, SETTLED),
    row("items.done", B.complete_items, OPERATE, SETTLED),
    row("items.fail", B.fail_items, OPERATE, SETTLED),
    row("items.bury", B.bury_items, OPERATE, SETTLED),
    row("items.move", B.move, OPERATE, SETTLED),
    row("items.reschedule", B.reschedule, OPERATE, SETTLED, example={"delay": "10m"}),
    row("items.undo", B.undo, OPERATE, SETTLED),
    row("items.hold", B.hold, OPERATE, CHANGED),
    row("items.unhold", B.unhold, OPERATE, CHANGED),
    row("items.import", produce.import_items, MANAGE, produce.Imported, example={**EMAILS, "items": [IMPORTED]}),
    row("dead.find", dead_letters.find, READ, ITEMS, example={**TIMEOUTS, "since": "1h", **LIMIT}),
    row("dead.search", dead_letters.search, READ_PAYLOADS, ITEMS, example={"words": "mail server refus*"}),
    row("dead.redrive", dead_letters.redrive, OPERATE, BULK, example={**TIMEOUTS, "rate": 10, "canary": 3, **DRY_RUN}),
    row("dead.archive", dead_letters.archive, OPERATE, BULK, example=TIMEOUTS),
    row("dead.restore", dead_letters.restore, OPERATE, BULK, example=EMAILS),
    row("dead.purge", dead_letters.purge, MANAGE, BULK, example={**EMAILS, **DRY_RUN}),
    row("dead.groups", B.groups, READ, Answer(dead_letters.GroupsView, dead_letters.groups_view)),
    row("operations.start", operations.start, OPERATE, BULK, example=MOVED),
    row("operations.list", B.list_operations, READ, OPERATIONS),
    row("operations.info", B.get_operation, READ, OPERATION),
    row("operations.cancel", B.cancel_operation, OPERATE, OPERATION),
    row("operations.pause", B.pause_operation, OPERATE, OPERATION),
    row("operations.resume", B.resume_operation, OPERATE, OPERATION),
    row("operations.set_rate", B.set_operation_rate, OPERATE, OPERATION),
    row("operations.undo", B.undo_operation, OPERATE, OPERATION),
    row("breakers.list", B.list_breakers, READ, BREAKERS),
    row("breakers.open", B.open_breaker, OPERATE, whole(BreakerStatus), example={"kind": "network", "open_for": "10m"}),
    row("breakers.close", B.close_breaker, OPERATE, RELEASED, example={"kind": "network"}),
    row("capture.enqueue", capture.enqueue_task, Permission.CAPTURE, capture.EnqueuedTask, example=FAILED_TASK),
    row("capture.list", capture.list_tasks, READ, capture.Tasks, example={"status": "exhausted", **LIMIT}),
    row("capture.get", capture.get_task, READ, TaskView),
    row("capture.retry", capture.retry_task, OPERATE, capture.DueTask),
    row("capture.archive", capture.archive_task, OPERATE, capture.ChangedTask),
    row("capture.restore", capture.restore_task, OPERATE, capture.ChangedTask),
    row("capture.clear", capture.clear_tasks, MANAGE, capture.ClearedTasks),
    row("capture.statistics", capture.task_statistics, READ, Statistics),
    row("feed.read", feed.feed, READ, feed.FeedView, example={"after": "0", "wait": "20s"}),
    row("audit.list", B.audit, READ, AUDIT),
    row("workers.list", B.workers, READ, WORKERS),
    row("moves.list", B.moves, READ, MOVES),
    row(
        "tokens.create",
        tokens.create_token,
        MANAGE_TOKENS,
        tokens.CreatedToken,
        namespace=TOKENS_NAMESPACE,
        example=NEW_TOKEN,
    ),
    row("tokens.list", tokens.list_tokens, MANAGE_TOKENS, tokens.TokenList, namespace=TOKENS_NAMESPACE),
    row(
        "tokens.revoke",
        tokens.revoke_token,
        MANAGE_TOKENS,
        tokens.RevokedToken,
        namespace=TOKENS_NAMESPACE,
        example={"name": "billing"},
    ),
)
