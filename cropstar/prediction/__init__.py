"""Prediction: maps computed in windows, the state of a season, output files."""
