"""A run is a directory: its layout, its checkpoints and its exported embeddings (design section 2)."""
