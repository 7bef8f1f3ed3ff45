"""Executing what was planned, run by run, and recording it."""
