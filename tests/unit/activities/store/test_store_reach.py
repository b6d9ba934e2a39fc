"""A PostgreSQL that does not answer is reported with what was tried, for how long, and what to do."""

import pytest

from psrl.activities.store.reach import require_reachable
from psrl.schemas.errors import Unreachable


def test_an_unreachable_database_is_named_without_its_password() -> None:
    wanted = r"PostgreSQL at postgresql\+psycopg://me:\*\*\*@127\.0\.0\.1:1/x did not answer within 0 s: .*`psrl up`"
    with pytest.raises(Unreachable, match=f"(?s){wanted}"):
        require_reachable("postgresql+psycopg://me:secret@127.0.0.1:1/x", timeout_s=0.1)
