"""The paths, by resource."""
