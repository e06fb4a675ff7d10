"""Consumers: pulls from explicit offsets, and membership in a group whose members share the queues."""
