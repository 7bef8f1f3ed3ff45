"""Strategies for signalling intent, with one file each."""

if __name__ != "adabench.backends":
    raise ImportError(
        f"this folder is the package 'adabench.backends', not {__name__!r}: "
        "install the project and import that"
    )
