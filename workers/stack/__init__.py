"""The local stack: PostgreSQL, Temporal and every worker of ours on one machine, started and supervised together."""
