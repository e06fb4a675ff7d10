"""RocketMQ's nouns: messages, records, topics, groups and routes, as immutable values and pure functions.

Nothing here reads a clock, a file or a socket; bytes and numbers come in, values and bytes go out.
"""
