"""The broker: one process, one replica of a shard, with a store of its own.

`bootstrap` is the only place that builds and wires; `processors` decode a request, call one owner and encode the
reply; `registry` holds topics, groups, offsets and who is connected; `store` holds the messages.
"""
