"""Samples, splits that do not leak, transforms and batches."""
