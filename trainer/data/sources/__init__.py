"""Where graphs come from: built-in, public and generated sets, and the user's own files."""
