"""The `gantry` command: run a whole stack, run one service, or administer a running stack.

The command starts services by module name and imports none of them. It reaches a running stack through its HTTP API.
"""
