"""Reports: runs, rows, lag history, and the objectives of groups."""
