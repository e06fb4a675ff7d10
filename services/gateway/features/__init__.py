"""The features of the gateway: each module or folder here is one, and bootstrap.py lists them.

A feature is a function from the core to a `Feature` (core.py). It builds the parts that no other feature needs, and
returns its routes, its background work, and its hooks for start and stop. Routes translate HTTP to calls of use cases.
"""
