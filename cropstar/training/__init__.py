"""Training and evaluation of models."""
