"""Columns of Arrow batches, made from records and rows."""
