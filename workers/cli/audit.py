"""`psrl audit`: a run's promises, one line each; as data first, as text from the same checks."""

from dataclasses import asdict
from typing import Any

from ...activities.store.reach import opened
from ...schemas.ids import RunId
from ...schemas.stack import Stack
from ..audit.audit import Audit, audit
from ..audit.check import Check


def audit_run(stack: Stack, run_id: str) -> Audit:
    """Raises `RunUnknown` or `Unreachable`."""
    with opened(stack.postgres_url, stack.store_id) as store, store.connect() as connection:
        return audit(connection, RunId(run_id), stack.weights_dir)


def as_data(done: Audit) -> dict[str, Any]:
    checks = [{"promise": check.promise, "ok": check.ok, **asdict(check)} for check in done.checks]
    return {"run_id": done.run_id, "phase": done.phase, "ok": done.ok, "checks": checks}


def as_text(done: Audit) -> str:
    """One line per promise; below a broken one, what breaks it."""
    lines = [line for check in done.checks for line in _lines(check)]
    broken = [check.promise for check in done.checks if not check.ok]
    verdict = f"BROKEN: {', '.join(broken)}" if broken else "every promise holds"
    return "\n".join([*lines, f"run {done.run_id} ({done.phase}): {verdict}"])


def _lines(check: Check) -> list[str]:
    seen = ", ".join(f"{count:,} {what}" for what, count in check.counts.items())
    lines = [f"{check.promise:<3} {check.name}: {seen} ... {'ok' if check.ok else 'BROKEN'}"]
    for one in check.findings:
        lines.append(f"    {one.fault}, {one.total:,} in total:")
        lines += [f"      {identity}" for identity in one.ids]
        if one.total > len(one.ids):
            lines.append(f"      and {one.total - len(one.ids):,} more")
    return lines
