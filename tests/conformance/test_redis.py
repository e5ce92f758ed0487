import pytest

from redrive.testing.conformance import StoreConformance


class TestRedis(StoreConformance):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url
