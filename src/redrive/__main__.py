"""`python -m redrive`: the command."""

from redrive.cli.main import main

if __name__ == "__main__":
    main()
