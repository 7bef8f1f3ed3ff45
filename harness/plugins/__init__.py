"""Plugins: finding and describing backends and use cases, and creating new ones."""
