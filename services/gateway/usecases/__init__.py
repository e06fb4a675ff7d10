"""The use cases of the gateway, one operation a module. This package knows nothing of HTTP."""
