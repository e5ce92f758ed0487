"""Entry point of `python -m redrive`, the same command line as `redrive`."""

from redrive.cli.main import main

if __name__ == "__main__":
    main()
