"""Processes: orchestrator, rollout, trainer, coordinator, rewards, the local stack, the CLI."""
