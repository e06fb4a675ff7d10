"""HTTP as the gateway reads and writes it: strict paths, strict parameters, bounded bodies, small answers."""
