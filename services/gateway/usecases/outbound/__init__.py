"""Requests of the gateway to URLs that its users give."""
