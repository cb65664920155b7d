"""Models: cells, stacks, heads, networks and the zoo that names them. Imports only torch and core."""
