"""The `gantry` command: everything on one machine, one service, and people's calls over HTTP.

Starts services by module name and imports none of them; reaches a running stack through its HTTP API.
"""
