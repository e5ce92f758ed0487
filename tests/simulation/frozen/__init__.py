"""The SQLite store as it was at one commit, and a comparison of every store with it.

    .venv/bin/python -m tests.simulation.frozen --seeds 1000

All stores share one set of rules. So a mistake in these is the same everywhere, and stores that agree with each other
prove less. The frozen store has rules of its own, in SQL, that are changed no more.
"""
