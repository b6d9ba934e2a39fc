"""The rollout worker: one process per engine, host of the activities on its own task queue."""
