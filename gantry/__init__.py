"""Gantry: the library that the services and their users share."""

__version__ = "0.1.0"
