"""How workflows call activities: time limits, patience, retries, tasks."""
