"""The command line: one file per command, options and one call each. Nobody imports this package."""
