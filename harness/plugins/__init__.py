"""Backends and use cases: finding, describing and beginning them."""
