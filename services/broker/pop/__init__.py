"""Pop: the broker hands out messages for a time, and gives them out again if they are not acknowledged."""
