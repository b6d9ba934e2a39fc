"""The gateway: an OpenAI-compatible endpoint in front of sessions. It keeps no state: any number of copies may run, and
any may be killed at any moment (docs/decisions/sessions.md)."""
