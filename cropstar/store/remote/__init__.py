"""Buckets and web servers: inputs are copied to the disk, outputs are uploaded."""
