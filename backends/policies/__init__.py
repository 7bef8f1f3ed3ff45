"""Builders of policies, one file each: every parameter server of the literature is one.

A builder gets a model's parameters and a cluster's resources and returns how each parameter is managed.
Builders here are found by the name of their file, builders of other packages by the entry point group
``adabench.backends.policies``.
"""
