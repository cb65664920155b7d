"""Networks over a whole series at once: convolutions in time, attention, trees. One file per network."""
