"""Names of buckets and web servers: what they hold is brought to the disk, what is made there is brought to them."""
