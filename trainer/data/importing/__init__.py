"""From tables of any size to a graph on disk, in bounded memory: `graph.import_graph` leads through the rest.

Nodes are read in blocks and written as they come (nodes, features, ids), edges are looked up (id_index), spread over
files by key and sorted file by file (edges, edge_sort). The result is what
`trainer.data.sources.tables` makes in memory.
"""
