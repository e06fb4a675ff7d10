"""The request processors: one module for each family of request codes. `table` maps each code to its handler."""
