"""The store's folder: its owner, its format, and the list of deleted topics."""
