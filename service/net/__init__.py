"""Addresses and HTTP connections, for the API, the encoder server and the client alike."""
