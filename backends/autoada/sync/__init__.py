"""Exchange of gradients between workers: process groups, gradient exchange, robust aggregation."""
