"""Rewards that come with PSRL, named in place of an import path. A further one is a file here, its options in
`schemas/config/built_in_rewards.py`, and a line in the registry."""
