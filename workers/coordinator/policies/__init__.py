"""Policies of the coordinator: pure functions of a snapshot, one folder per question, one file per policy.

A policy has no clock, no memory and no chance of its own: what it needs of them stands in the snapshot, so that a
simulator may ask the same functions. A further policy is one file and one line in its folder's registry.
"""
