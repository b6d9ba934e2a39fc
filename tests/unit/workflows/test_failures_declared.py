"""No workflow class forgets how workflows fail."""

import importlib
import inspect
import pkgutil

from temporalio.workflow import _Definition

import psrl.workflows
from psrl.workers.orchestrator import WORKFLOWS
from psrl.workflows.failure import FAILS


def defined() -> set[type]:
    """Every workflow class of the project."""
    names = [module.name for module in pkgutil.walk_packages(psrl.workflows.__path__, "psrl.workflows.")]
    classes = [kind for name in names for _, kind in inspect.getmembers(importlib.import_module(name), inspect.isclass)]
    return {kind for kind in classes if _Definition.from_class(kind) is not None}


def test_every_workflow_fails_by_the_one_rule() -> None:
    for kind in defined():
        assert _Definition.must_from_class(kind).failure_exception_types is FAILS, kind.__name__


def test_every_workflow_is_hosted_and_so_raised_in_by_the_test_of_the_rule() -> None:
    assert defined() == set(WORKFLOWS)
