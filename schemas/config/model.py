"""`model.*`: which weights to start from."""

from .base import Section


class ModelSection(Section):
    path: str = ""
    """Directory with a Hugging Face causal LM (config, safetensors, tokenizer). Required."""
    trust_remote_code: bool = False
    """Run code from the model directory."""
