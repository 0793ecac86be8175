"""What processes that train together share: sums, gathered rows, decisions."""
