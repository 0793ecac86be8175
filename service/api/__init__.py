"""The REST API: what a request passes through, and what answers it.

edge/                every request: limits of the connection, Host, Origin, key, rate, size, headers, metrics
fast_routes          the few routes asked so often that they skip FastAPI's own way to an endpoint
routes/              the paths by resource; `state` is what they share
body → submission    from bytes to a queued job
responses, schemas   from a job to the document a client reads
events               server-sent events
problems             every refusal, as RFC 9457 problem+json
"""
