"""Files of the store: mapping, allocation of blocks, page residency, removal."""
