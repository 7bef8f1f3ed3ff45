"""What is to be run: studies, their selection of cells, and the order of the runs."""
