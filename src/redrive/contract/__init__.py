"""Every call and query of the store contract: one struct each, with a docstring and its facts (`contract.base`).

The protocol is in `redrive.store`.
"""

from __future__ import annotations

from redrive.contract.admin_calls import AdminCall
from redrive.contract.item_calls import ItemCall
from redrive.contract.maintenance_calls import MaintenanceCall
from redrive.contract.queries import Query

__all__ = ["Call", "Query"]

Call = ItemCall | AdminCall | MaintenanceCall
