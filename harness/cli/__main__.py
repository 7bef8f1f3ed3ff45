"""``python -m adabench.harness.cli``: the command ``adabench``."""

from adabench.harness.cli.main import main

if __name__ == "__main__":
    main()
