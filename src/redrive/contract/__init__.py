"""Every call and query of the store contract: one struct and one docstring each. The protocol is in `redrive.store`."""

from __future__ import annotations

from typing import Any, get_args

from redrive.contract.admin_calls import (
    ApplyRetention,
    CloseMove,
    CreateQueue,
    DeleteQueue,
    Expire,
    FinishMove,
    Hold,
    Import,
    ManualChange,
    Promote,
    Receive,
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
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, Put, Reply, ReturnLease, Settle
from redrive.contract.queries import (
    CountItems,
    FindItems,
    GetIdempotencyOwners,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetLease,
    GetLeasedItem,
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

QueueCall = CreateQueue | UpdateQueue | SetPaused | SetBreakers | SetSourceQueue | DeleteQueue
RegistrationCall = Register | Unregister
SettleCall = Complete | Settle | ReturnLease | Extend | Reply
OperationCall = StartOperation | StepOperation | SetOperation
Call = (
    QueueCall
    | Put
    | RegistrationCall
    | Import
    | Receive
    | Hold
    | Unhold
    | SettleCall
    | ManualChange
    | OperationCall
    | Promote
    | Expire
    | ApplyRetention
    | FinishMove
    | CloseMove
    | LeaseByIds
    | LeaseItems
)
Query = (
    GetQueue
    | ListQueues
    | GetStats
    | ListStats
    | GetItem
    | GetItems
    | FindItems
    | CountItems
    | ListGroups
    | ReadFeed
    | GetIdempotencyOwners
    | GetItemsByKey
    | GetOperation
    | ListOperations
    | GetOverdue
    | GetLease
    | GetLeasedItem
    | ListWorkerLeases
    | GetResult
    | ListRegistrations
    | ListAudit
    | ListMoveTargets
    | ListMoves
    | ListOpenMoves
    | GetNextDue
)
COMMIT_ORDER: tuple[tuple[type[Any], ...], ...] = (
    get_args(QueueCall),
    (Put,),
    get_args(RegistrationCall),
    (Import, Receive),
    (Hold, Unhold),
    get_args(SettleCall),
    (ManualChange,),
    get_args(OperationCall),
    (Promote, Expire, ApplyRetention, FinishMove, CloseMove),
    (LeaseByIds,),
    (LeaseItems,),
)
"""The kinds of calls, in the order in which those of one batch take effect."""
