"""Interfaces of other parameter servers."""
