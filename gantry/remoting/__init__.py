"""RocketMQ's Remoting protocol: a codec without I/O, and an asyncio client and server on top of the codec."""
