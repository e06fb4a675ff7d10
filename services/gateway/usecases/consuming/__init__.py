"""Consumer groups at work: connected clients and committed offsets."""
