"""Which of the instances that may serve a trajectory gets it: `psrl.rollout_coordination.routing_strategy.method`."""
