"""Adding small numbers: a task a tiny model learns on one CPU core in about a minute."""
