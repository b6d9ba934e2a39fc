"""A sync that cannot wait, whatever the policy says: the run has work that no instance may do as the fleet is.

Either trajectories wait that need a newer version than any instance serves, or the ledger admits new groups and none of
them at a version that is served. One instance is enough, so the least busy one syncs, and not while another does.
"""

from .contract import SyncSnapshot


def needed(snapshot: SyncSnapshot) -> str:
    """Why this instance has to sync now; empty when it has not."""
    work = _work_for_nobody(snapshot)
    if not work:
        return ""
    behind = [one for one in snapshot.instances.values() if one.serving and one.version < snapshot.target]
    chosen = min(behind, key=lambda one: (one.requests_at_hand, one.instance), default=None)
    return f"{work}, and it is the least busy" if chosen and chosen.instance == snapshot.instance else ""


def _work_for_nobody(snapshot: SyncSnapshot) -> str:
    """One that is on its way serves the newest version soon; one that is lost may never."""
    there = [one for one in snapshot.instances.values() if not one.lost]
    versions = {one.version if one.serving else snapshot.target for one in there}
    newest = max(versions)
    if any(newest < tag <= snapshot.target for tag in snapshot.queued):
        return f"trajectories wait for a version newer than v{newest}, which nobody serves"
    admitted = {version for version, count in snapshot.admits.items() if count and version <= snapshot.target}
    if admitted and not admitted & versions:
        return "the ledger admits new groups at no version that is served"
    return ""
