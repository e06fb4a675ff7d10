"""Authentication and authorisation: API keys, their rights, and one-use tickets for browsers."""
