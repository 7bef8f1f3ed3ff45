"""Training tasks in plain PyTorch, with one folder each."""

if __name__ != "adabench.usecases":
    raise ImportError(
        f"this folder is the package 'adabench.usecases', not {__name__!r}: "
        "install the project and import that"
    )
