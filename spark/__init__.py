"""Reports on backlog and consumption lag: a data source, transforms, jobs, and a scheduler."""
