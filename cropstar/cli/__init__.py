"""The command line: one file a command, options and one call each. Nobody imports this package."""
