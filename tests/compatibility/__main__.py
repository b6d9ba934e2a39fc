"""`python -m tests.compatibility`: try every input, and write docs/compatibility.md from what was seen."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.compatibility.conftest import ROWS_VARIABLE
from tests.compatibility.matrix import PAGE, Rows, page


def main() -> int:
    """Also of a run with failures: the page shows them, and so does the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ROWS_VARIABLE] = folder
        status = int(pytest.main([str(Path(__file__).parent), "-p", "no:cacheprovider"]))
        PAGE.write_text(page(Rows(Path(folder))))
    return status


if __name__ == "__main__":
    sys.exit(main())
