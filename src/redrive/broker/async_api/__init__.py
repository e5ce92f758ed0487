"""The methods of `AsyncBroker`, by topic."""
