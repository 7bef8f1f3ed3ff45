"""How a run's processes are started, watched and ended."""
