"""How much memory there is, how much a run will need, and what is chosen from that before it starts."""
