"""The native client: producers, pull consumers, group members and admin calls over RocketMQ Remoting.

One ClientEngine holds the connections, routes and heart-beats of a process. Producers, consumers and admin calls use
this engine.
"""
