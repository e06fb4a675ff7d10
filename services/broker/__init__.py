"""The broker: one process that serves one replica of a broker set from its own store.

`bootstrap` is the only place that creates the parts and connects them to the outside. The modules of `processors`
decode a request, call the one owner of the data, and encode the reply. `registry` holds topics, groups, offsets and the
connected clients. `store` holds the messages.
"""
