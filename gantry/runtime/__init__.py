"""The interface to the outside world: time, files, randomness, tasks and settings.

No other package reads a clock, opens a file or draws a random number. So tests can run two hours of retries in a
millisecond, and they can crash a store at every write. This package imports no other package of Gantry.
"""
