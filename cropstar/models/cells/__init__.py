"""One recurrent cell a file, with its naive reference beside the fast path."""
