"""What runs inside a run, and what passes between it and the harness."""
