"""Reads a store without a broker: a folder, or an archive of one."""
