"""Environments: what answers the policy between its turns. `environment.py` is what a user writes against."""
