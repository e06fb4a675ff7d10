"""Small programs over gantry.http; each runs against the stack that `gantry up --data DIR` started."""
