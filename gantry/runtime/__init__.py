"""The door to the outside: time, files, randomness, tasks and settings come in through here.

Nothing else in the product reads a clock, opens a file or draws a random number by itself, so that tests can
run two hours of retries in a millisecond and crash a store at every write. Imports nothing of ours.
"""
