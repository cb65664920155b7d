"""Tests of the STAC source against a real API on this machine."""
