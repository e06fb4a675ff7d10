"""The files of a store: their layouts, and reading a store that is not running.

Nothing here writes to a store. The broker's store shares the layouts; the command line, Spark and tests the rest.
"""
