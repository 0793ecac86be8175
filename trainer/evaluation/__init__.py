"""How good embeddings are: probe, clustering, pair similarities, held-out links, geometry and figures."""
