"""Jobs' events as they happen: one poller per process, any number of watchers."""
