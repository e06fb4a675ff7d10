"""Transactions over HTTP: half messages, decisions, checks."""
