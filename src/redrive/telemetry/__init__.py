"""What a program can be watched by: events in the log, metrics, traces. Never payloads, never secrets."""
