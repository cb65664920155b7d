"""Readers of what the world has. Each yields a `Series` on one grid; none imports torch."""
