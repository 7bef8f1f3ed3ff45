"""Studies: which cells are run, how often and in which order."""
