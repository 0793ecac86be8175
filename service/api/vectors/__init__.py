"""Embeddings over HTTP: what a request means, and how its answer travels.

catalogue, pulse     which version a name means now, and its open table
negotiate            the form of the answer (Accept), and whether the client has it already (If-None-Match)
bodies, schemas      from bytes to a checked question
nearest, new_nodes   questions that compute: neighbours, new nodes
turns                how many of those at a time
answers, documents   from arrays and records to bytes
sending              to the client, in pieces
"""
