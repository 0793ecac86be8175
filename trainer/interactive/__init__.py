"""For notebooks and scripts: a graph in memory goes in, an object with its embeddings comes out."""
