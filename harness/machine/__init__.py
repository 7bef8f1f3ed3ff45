"""This machine: what it is, its processes, temporary folders and network namespaces."""
