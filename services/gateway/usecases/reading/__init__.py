"""Reading messages without consuming them: by offset, by key and by id."""
