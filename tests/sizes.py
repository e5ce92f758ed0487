"""How much the tests do: enough to find mistakes on every change, or, with `./dev soak`, all of it."""

from __future__ import annotations

import os

THOROUGH = bool(os.environ.get("REDRIVE_THOROUGH"))
