"""The REST API, its dispatcher and store, the client, and the `nml` command line. Starts without torch."""
