"""The name server: which broker serves which topic, told by the brokers and asked by everyone else.

It keeps nothing on disk but key-values; name servers do not know of each other, brokers register with every one.
"""
