"""Rewards: a user's function by import path, called with limits, its results stored."""
