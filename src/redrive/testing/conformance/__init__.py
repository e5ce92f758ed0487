"""The suite that every store passes: each rule of a queue as one small test.

Nearly all of them go through the public `Broker`; what it cannot say, they say to the store (`direct.py`).

A store is bound to it by one class:

    from redrive.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}"

A store that `redrive.connect` does not know overrides `connect` and `connect_async` instead of `url`; see `Suite`.
A store declares in the class what it can do by its nature (`supports_processes`, `is_durable`,
`supports_transactions`); nothing else is ever skipped.
"""

import importlib.util
import pkgutil

for _needed in ("pytest", "hypothesis"):
    if importlib.util.find_spec(_needed) is None:
        raise ImportError("the conformance suite runs on pytest and hypothesis: pip install pytest hypothesis")

import pytest  # noqa: E402

# Before the modules are imported, so that a failed assertion shows its values in any project.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from redrive.testing.conformance.store_conformance import StoreConformance  # noqa: E402
from redrive.testing.conformance.suite import OpenBroker, Suite  # noqa: E402

__all__ = ["OpenBroker", "StoreConformance", "Suite"]
