"""From a trained encoder to embeddings of every node on disk, layer by layer, resumable."""
