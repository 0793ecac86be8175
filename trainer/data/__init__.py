"""The graph: what it is, where it comes from, how it is stored, and the random streams that everything draws from."""
