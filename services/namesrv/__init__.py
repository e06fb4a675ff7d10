"""The name server: knows which broker serves which topic. Brokers register their topics, and clients ask for routes.

It keeps only key-values on disk. Name servers do not know each other; brokers register with each of them.
"""
