"""Benchmarks of recurrent cells beyond crops: sequence tasks, suites of them, and the gradient lattice."""
