"""Observability of a program: events in the log, metrics, traces. Never payloads, never secrets."""
