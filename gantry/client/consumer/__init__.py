"""Consumers: pulling from explicit offsets, and membership in a group that shares out queues."""
