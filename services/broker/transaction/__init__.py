"""Transactional messages: half messages, decisions, op messages, and checks with the producers."""
