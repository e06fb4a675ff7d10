"""Requests: a module a family of request codes, and `table`, which says who answers which code."""
