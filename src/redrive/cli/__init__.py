"""The command `redrive`, and `python -m redrive`."""
