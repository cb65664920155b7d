"""What a model eats: samples, splits that do not leak, normalisation."""
