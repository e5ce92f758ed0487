"""Functions as tasks: an app, its queues, and the tasks in them. `redrive.worker` runs them."""
