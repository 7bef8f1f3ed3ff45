"""Estimates of training time: simulation, prediction from records, search for policies."""
