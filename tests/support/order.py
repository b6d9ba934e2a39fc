"""The order of one pytest run over everything: a pytest plugin, named in `tests/conftest.py`.

End-to-end tests come last, and with pytest-xdist on one worker: two real engines at a time would starve each other. All
other tests of a file stay together, since they share its servers.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

E2E = "e2e"
"""A marker, and the folder of all tests that have it."""


class Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return E2E if _is_e2e(nodeid) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (item.get_closest_marker(E2E) is not None) != _is_e2e(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: end-to-end tests, and no others, are in a folder {E2E!r}")
    items.sort(key=lambda item: _is_e2e(item.nodeid))


def _is_e2e(nodeid: str) -> bool:
    return E2E in nodeid.partition("::")[0].split("/")
