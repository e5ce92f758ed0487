"""Validation of calls received from clients."""
