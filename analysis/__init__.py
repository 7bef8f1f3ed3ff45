"""Reads records; computes statistics; draws figures."""

if __name__ != "adabench.analysis":
    raise ImportError(
        f"this folder is the package 'adabench.analysis', not {__name__!r}: "
        "install the project and import that"
    )
