"""One attempt at a run: steps, events, interruptions, and what follows the last epoch."""
