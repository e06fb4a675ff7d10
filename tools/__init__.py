"""What developers run: the house lint and the wheel's smoke test."""
