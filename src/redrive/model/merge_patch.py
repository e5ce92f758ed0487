"""JSON merge patches (RFC 7396): a small table that says what to change in a larger one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(value: Any, patch: Any) -> Any:
    """The value with the patch applied: tables are merged key by key, None removes a key, all else replaces.

    Neither argument is changed.
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), change)
    return merged
