"""Runs studies: it trains every cell several times and records each run."""

if __name__ != "adabench.harness":
    raise ImportError(
        f"this folder is the package 'adabench.harness', not {__name__!r}: "
        "install the project and import that"
    )
