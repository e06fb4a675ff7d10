"""`python -m gantry.cli`: the `gantry` command without its script on the PATH."""

from gantry.cli.main import main

if __name__ == "__main__":
    main()
