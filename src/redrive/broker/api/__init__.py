"""The methods of `Broker`, by what they are for."""
