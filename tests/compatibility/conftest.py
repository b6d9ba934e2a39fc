"""`record`: where a test of this folder writes the row of the input that it has tried."""

import os
from pathlib import Path

import pytest

from tests.compatibility.matrix import Record, Rows

ROWS_VARIABLE = "PSRL_COMPATIBILITY_ROWS"
"""The folder of the rows that become the page; without it they go nowhere."""


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    wanted = os.environ.get(ROWS_VARIABLE)
    return Rows(Path(wanted) if wanted else tmp_path_factory.mktemp("rows")).write
