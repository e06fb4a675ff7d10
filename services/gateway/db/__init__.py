"""Metadata in Postgres: desired topics and groups, subscriptions seen, API keys and the audit trail.

Never in the path of a message: when Postgres is away, whatever lives here raises MetadataUnavailableError within
seconds, and sending and consuming go on without it.
"""
