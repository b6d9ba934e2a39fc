"""The spelling of a key that the table has. Called by `translate.py` for every key that was read."""

TRAINING, GENERATION = "train_actor_rollout_ref.", "gen_actor_rollout_ref."
COMMON = "actor_rollout_ref."


def spelling(key: str) -> str:
    """PSRL has veRL's `actor_rollout_ref` twice, once for each cluster; here it is one thing."""
    for prefix in (TRAINING, GENERATION):
        if key.startswith(prefix):
            return COMMON + key.removeprefix(prefix)
    return key


def clusters(key: str) -> tuple[str, ...]:
    """How PSRL's two clusters spell a key of veRL's."""
    return tuple(prefix + key.removeprefix(COMMON) for prefix in (TRAINING, GENERATION) if key.startswith(COMMON))


def weight(key: str) -> int:
    """Of several keys that say something about one thing the one with the largest weight counts. PSRL's own keys come
    first. For what is generated the generation cluster counts: the training cluster's rollout section is a placeholder
    there, except for validation."""
    if key.startswith("psrl."):
        return 3
    rollout = ".rollout." in key and ".val_kwargs." not in key
    if key.startswith(GENERATION):
        return 2 if rollout else 1
    return 1 if rollout else 2
