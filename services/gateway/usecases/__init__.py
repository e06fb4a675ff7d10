"""What the gateway does, one operation a module; nothing here knows of HTTP."""
