"""Which messages a subscription wants: tags by their hash."""
