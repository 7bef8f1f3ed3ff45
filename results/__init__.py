"""What a record of a run is, and where records are kept."""

if __name__ != "adabench.results":
    raise ImportError(
        f"this folder is the package 'adabench.results', not {__name__!r}: "
        "install the project and import that"
    )
