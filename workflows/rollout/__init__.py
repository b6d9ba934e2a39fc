"""Groups, their trajectories, validation rounds, and the instances they run on."""
