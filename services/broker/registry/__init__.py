"""What the broker knows beside the messages: topics, groups and offsets (kept in files), producers and consumers (live)."""
