"""The conformance suite of stores: each rule of a queue as one small test.

Nearly all tests use the public `Broker`; others call the store directly, by `StoreDriver` in `suite.py`.

One class binds a store to the suite:

    from redrive.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}"

A store that `redrive.connect` does not know overrides `connect` and `connect_async` instead of `url`; see `Suite`.
The class declares the capabilities of the store (`supports_processes`, `is_durable`, `supports_transactions`); no other
test is skipped.
"""

import importlib.util
import pkgutil

for _needed in ("pytest", "hypothesis"):
    if importlib.util.find_spec(_needed) is None:
        raise ImportError("the conformance suite runs on pytest and hypothesis: pip install pytest hypothesis")

import pytest  # noqa: E402

# Called before the import of the modules, so that a failed assertion shows its values in any project.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from redrive.testing.conformance.store_conformance import StoreConformance  # noqa: E402
from redrive.testing.conformance.suite import OpenBroker, Suite  # noqa: E402

__all__ = ["OpenBroker", "StoreConformance", "Suite"]
