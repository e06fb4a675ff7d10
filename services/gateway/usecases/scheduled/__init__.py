"""Scheduled messages: those that wait at a broker for their time."""
