"""``adabench predict`` with tables: mistakes in the tables."""

from pathlib import Path
from typing import Any

import pytest

TABLE = ("predict", "--table", "t.csv", "--target", "s")


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> None:
    """Write a table of forty rows; the seconds are missing in row 1 and a feature in row 31."""
    lines = [f"{'' if row == 31 else row},{'' if row == 1 else row * 2}" for row in range(1, 41)]
    (tmp_path / "t.csv").write_text("n,s\n" + "\n".join(lines))


def test_row_without_a_feature_is_named_by_its_place_in_the_file(refused: Any) -> None:
    assert refused(*TABLE, quiet=False).startswith("t.csv: row 31 has no finite 'n'")


def test_table_without_features_is_refused(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("s\n1\n2\n")
    assert refused(*TABLE) == "t.csv has only the column 's': add columns to predict it from"


def test_column_with_the_name_of_a_prediction_is_not_overwritten(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "at.csv").write_text("n,predicted\n1,2\n")
    assert refused(*TABLE, "--at", "at.csv", quiet=False) == (
        "at.csv has a column 'predicted', which the output adds: rename it"
    )


def test_wrong_row_of_the_other_table_is_named_with_that_table(refused: Any, tmp_path: Path) -> None:
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("\n,62", ""))
    (tmp_path / "at.csv").write_text("n,m\n1,2\n,3\n")
    assert refused(*TABLE, "--at", "at.csv", quiet=False).startswith("at.csv: row 2 has no finite 'n'")
