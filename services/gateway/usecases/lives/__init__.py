"""The life of one message: what happened to it, and what each group made of it."""
