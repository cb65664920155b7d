"""Learning: the loop, its state on disk, and the figures that judge it."""
