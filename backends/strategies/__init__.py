"""Strategies of signalling intent to the parameter server, one file each."""
