"""Principals, their tokens, and the permissions that each call needs."""
