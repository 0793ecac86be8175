"""What can be asked of a published version beyond its rows: vectors of new nodes, classes from a few labels."""
