"""The coordinator's client, for rollout hosts and the CLI."""

from ...activities.routing.client import CoordinatorClient

__all__ = ["CoordinatorClient"]
