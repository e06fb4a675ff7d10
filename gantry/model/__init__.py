"""The model of RocketMQ: messages, records, topics, groups and routes, as immutable values and pure functions.

The functions take bytes and numbers and return values and bytes. They never read a clock, a file or a socket.
"""
