"""Jobs: long work that survives the gateway that does it."""
