"""State of a training: its steps, random generators, position in the data."""
