"""Strategies for signalling intent to the parameter server, with one file each."""
