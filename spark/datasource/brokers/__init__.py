"""Requests to running brokers: the survey of groups, positions, and records of queues."""
