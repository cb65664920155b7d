"""`python -m cropstar`: the same entry point as the `cropstar` command."""

from cropstar.cli.main import main

if __name__ == "__main__":
    main()
