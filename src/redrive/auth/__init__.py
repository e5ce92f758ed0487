"""Principals, their tokens, and the permission that each call needs."""
