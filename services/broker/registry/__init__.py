"""The broker's tables beside the messages: topics, groups and offsets (in files), live producers and consumers."""
