"""The format of records of runs, and their storage."""

if __name__ != "adabench.results":
    raise ImportError(
        f"this folder is the package 'adabench.results', not {__name__!r}: "
        "install the project and import that"
    )
