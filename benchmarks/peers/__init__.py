"""Other queues on SQLite. Each script runs in an environment of its own, with the version that its header pins."""
