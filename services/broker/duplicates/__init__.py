"""Duplicate windows: a message whose unique key the topic has had within a time is not stored again."""
