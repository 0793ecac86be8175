"""The encoder server: embeds new nodes and classifies in a process that has torch, which the API never loads.

client      what the API uses: a queue before a process of its own, or before an encoder server elsewhere
process     starts `python -m service.encoder --fd=N` when first asked, asks it over a Unix socket, and ends it
server      `python -m service.encoder --listen=HOST:PORT`: the same processes for APIs elsewhere that know the token
app         the HTTP interface of both; worker: what the process with torch computes
messages    questions and answers as they travel; address: where the server is, and its token
"""
