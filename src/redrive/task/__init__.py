"""Functions as work: an app, its queues, and the tasks in them. Nothing here runs them; `redrive.worker` does."""
