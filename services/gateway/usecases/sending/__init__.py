"""Sending: one message, a batch, or the messages of a stream, each with its outcome."""
