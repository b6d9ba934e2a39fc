"""Placement of trajectories on the fleet, as the coordinator sees it."""
