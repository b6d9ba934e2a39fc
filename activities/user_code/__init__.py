"""Functions of the user's: found by import path, called with limits. Rewards and group filters share them."""
