import os

import pytest
from hypothesis import settings

# `ci` finds the same things on every run; `thorough` looks for new ones.
settings.register_profile("ci", derandomize=True, max_examples=30, deadline=None, database=None)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("REDRIVE_HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
