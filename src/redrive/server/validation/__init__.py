"""Whether a call off the wire is one that a broker could have made."""
