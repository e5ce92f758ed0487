"""Queues and items as users think of them."""
