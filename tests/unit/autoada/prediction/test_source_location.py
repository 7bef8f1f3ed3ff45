"""Locations in the user's source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autoada.prediction.source_location import user_location


def location_in(file: str) -> str:
    """The location that code of `file` gets, called by this test."""
    variables: dict[str, Any] = {"user_location": user_location}
    exec(compile("where = user_location()", file, "exec"), variables)
    return str(variables["where"])


@pytest.mark.parametrize("file", ["/home/u/torch/train.py", "/home/u/autoada/train.py"])
def test_a_folder_with_the_name_of_a_package_belongs_to_the_user(file: str) -> None:
    assert location_in(file) == f"{file}:1"


def test_code_of_pytorch_is_not_the_users() -> None:
    assert location_in(str(Path(torch.__file__).parent / "nn" / "new.py")).startswith(__file__)
