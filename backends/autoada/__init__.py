"""AutoAda: any PyTorch model and data loader on the adaptive parameter server, with automatic intent."""

if __name__ != "autoada":
    raise ImportError(
        f"this folder is the package 'autoada', not {__name__!r}: install the project and import autoada"
    )
