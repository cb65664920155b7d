"""What people look at: the picture of a map and the report of a training run. matplotlib loads on first use."""
