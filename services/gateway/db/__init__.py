"""Metadata in Postgres: desired topics and groups, observed subscriptions, API keys and the audit trail.

It is never on the path of a message: while Postgres is unavailable, calls here raise MetadataUnavailableError within
seconds, and sending and consuming continue.
"""
