"""How a graph too large to encode whole is taken in batches: seeds and their sampled in-neighbourhoods, in order."""
