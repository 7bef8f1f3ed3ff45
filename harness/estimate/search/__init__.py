"""Search for the policy that is predicted to be best: problems, solvers, costs of choices, candidates."""
