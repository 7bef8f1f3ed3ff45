"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data sets beside the repository; tests that need it are skipped without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no folder with real data at ../shared/data, beside the repository")
    return SHARED_DATA
