"""Sending: one message or a batch; each message has a result of its own."""
