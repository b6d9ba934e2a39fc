"""Which requests leave a busy instance for a starved one: `psrl.rollout_coordination.sync_and_mig_strategy.mig`."""
