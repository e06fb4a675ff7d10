"""`python -m gantry.cli`: the `gantry` command where the script is not on the path."""

from gantry.cli.main import main

if __name__ == "__main__":
    main()
