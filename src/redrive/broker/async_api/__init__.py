"""The methods of `AsyncBroker`, by what they are for."""
