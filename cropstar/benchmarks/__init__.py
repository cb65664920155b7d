"""What recurrent cells do beyond crops: the gradient lattice."""
