"""When an instance that is behind pulls the newest weights: `psrl.rollout_coordination.sync_and_mig_strategy.sync`."""
