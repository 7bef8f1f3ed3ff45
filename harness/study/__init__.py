"""Studies: their cells, and the number and order of runs."""
