"""Recovery: the repairs and checks of a start."""
