"""Checks of plugins, and of the machine on which runs are measured."""
