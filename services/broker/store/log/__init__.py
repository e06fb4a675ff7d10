"""The CommitLog: its files, its records, and their order."""
