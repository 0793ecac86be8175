"""The `nml` command line; later also the REST API, dispatcher and embedding retrieval. Starts without torch."""
