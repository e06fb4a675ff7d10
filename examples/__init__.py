"""Small programs that use gantry.http; each runs against a stack of `gantry up --data DIR`."""
