"""Durability: flushing of the CommitLog and of derived files, and the checkpoint."""
