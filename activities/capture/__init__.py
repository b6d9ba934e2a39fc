"""Capture of conversations: from an agent's messages to exactly the tokens the engine sees, and from sampled tokens
back to a message. Plain functions and one object around the tokenizer: no store, no network, no engine."""
