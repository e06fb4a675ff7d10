"""The wire: RocketMQ's Remoting protocol, as a codec without I/O and as asyncio client and server on top of it."""
