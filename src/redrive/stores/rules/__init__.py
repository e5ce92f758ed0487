"""The rules of the contract in plain Python, on a state of queues, items and indexes. For memory and Redis."""
