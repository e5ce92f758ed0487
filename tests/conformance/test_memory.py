import pytest

from redrive.testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    # It lives and ends with its broker.
    supports_processes = False
    is_durable = False

    @pytest.fixture
    def url(self) -> str:
        return "memory://"
