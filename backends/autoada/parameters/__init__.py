"""Parameters of a wrapped model: tables on the server, and dense parameters."""
