"""Published embeddings: immutable tables that are memory-mapped, looked up by the user's ids, and searched."""
