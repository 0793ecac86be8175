"""A run is a directory: who may train in it, what has happened there, and its checkpoints (design section 2)."""
