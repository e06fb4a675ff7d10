"""Message filters of subscriptions: tags, compared by their hash."""
