"""Runs studies: every cell of backend and use case, repeated, recorded."""

if __name__ != "adabench.harness":
    raise ImportError(
        f"this folder is the package 'adabench.harness', not {__name__!r}: "
        "install the project and import that"
    )
