"""Networks over a whole series at once: convolutions in time and attention. One file a network."""
