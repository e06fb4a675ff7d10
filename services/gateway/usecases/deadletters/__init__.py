"""Dead letters: messages whose group failed to consume them for the last time."""
