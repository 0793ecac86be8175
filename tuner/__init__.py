"""Sweeps on Ray Tune; not written yet."""
