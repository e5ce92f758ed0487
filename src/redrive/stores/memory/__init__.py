"""A store in the memory of this process, for tests and trials; the reference for all other stores."""

from redrive.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
