"""Tools for developers: the house lint, the JSON of the contract, and the smoke test of the wheel."""
