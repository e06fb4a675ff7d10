"""Small programs that use gantry.http, and gantry.client for request-reply; each runs against a stack of `gantry up --data DIR`."""
