"""The files of a store: their layouts, and readers for a store that no broker runs on.

Nothing here writes a store's records, queues or index. The broker's store uses the layouts. The command line, Spark and
the tests use the readers.
"""
