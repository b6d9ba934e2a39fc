"""Sessions in the store: what agents said, who may say it, and what became of it."""
