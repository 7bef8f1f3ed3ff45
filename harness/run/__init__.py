"""Code that runs inside the processes of a run, and the files that it shares with the harness."""
