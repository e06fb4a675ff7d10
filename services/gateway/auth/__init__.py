"""Who calls, and what they may do: API keys, their rights, and one-use tickets for browsers."""
