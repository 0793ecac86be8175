"""Embeddings over HTTP, in the order in which a request passes through.

catalog, revision        which version a name means now, and its open table
negotiation              the format of the answer (Accept), and whether the client has it already (If-None-Match)
request_body, schemas    from bytes to a validated request
neighbors, new_nodes     requests that compute: nearest neighbours, new nodes
bounded_pool             how many of those run at a time
responses, documents     from arrays and records to bytes
raw_response             bytes to the client, in chunks
downloads                whole tables as files
"""
