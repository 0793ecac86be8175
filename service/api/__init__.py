"""The REST API: what a request passes through, and what answers it.

edge/                every request: Host, Origin, key, rate, size, headers, time taken
problems             every refusal, as RFC 9457 problem+json
body → submission    from bytes to a queued job
views, schemas       from a job to the document a client reads
events/              server-sent events
routes/, direct      the paths; direct are those asked so often that FastAPI only describes them
"""
