"""Numerics of training: plain functions on tensors and lists, usable without Temporal and without a store."""
