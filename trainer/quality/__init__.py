"""How good embeddings are: probe, clustering, pair similarities, weights of negatives, geometry and figures."""
