"""The command line: one file per command, with its options and one call. No other package imports it."""
