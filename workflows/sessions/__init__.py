"""Conversations with agents from outside."""
