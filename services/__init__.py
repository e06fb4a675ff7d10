"""The three servers: name server, broker, gateway."""
