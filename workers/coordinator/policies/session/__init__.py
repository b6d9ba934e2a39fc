"""Which sessions wait, so that those that run find room for their KV cache."""
