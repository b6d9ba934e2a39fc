"""Asynchronous reinforcement-learning post-training in which every decision is a durable workflow step."""

__version__ = "0.1.0"
