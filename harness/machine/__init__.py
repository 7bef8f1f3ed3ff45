"""The local machine: its properties, processes, temporary folders and network namespaces."""
