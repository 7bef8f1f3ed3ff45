"""Builders of policies, with one file each, for the parameter servers of the literature.

A builder gets a model's parameters and a cluster's resources, and returns the management of each parameter.
Builders in this package are found by the name of their file, builders of other packages by the entry point
group ``adabench.backends.policies``.
"""
