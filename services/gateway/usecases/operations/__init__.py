"""The operation of brokers: settings, drains, removal of old data."""
