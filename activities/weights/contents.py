"""Which files of a model folder hold its weights, and whether those are the model that its configuration describes.

Read from their tables of contents alone, so that admission can ask: who loads the tensors finds out again, after the
start of a run.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

from ...schemas.errors import ModelError, one_line
from ...schemas.text import shown
from ..library import loading
from .described import INDEX
from .folder import is_there, read_object, refuse_pointer

SINGLE = "model.safetensors"
"""Holds the model where there is no index. Other files in the folder are none of its weights."""
QUANTISED_TYPES = ("F8_", "F4")
"""Number formats that only quantised weights have."""
QUANTISED_NAMES = ".qweight"
"""How GPTQ and AWQ name packed weights; older folders of theirs do not say so in config.json."""
WHOLE_NUMBERS: Final = {"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL"}
SHOWN = 3


class Listed(NamedTuple):
    """A tensor, as a file's table of contents has it."""

    file: Path
    number_format: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """Raises `ModelError` where there are none, or one of them is missing."""
    if is_there(folder / INDEX):
        names = read_object(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise ModelError(
                f"{folder / INDEX}: weight_map={shown(names)}; allowed: an object that names a file for every tensor"
            )
        files = [folder / name for name in sorted(set(names.values()))]
        missing = [file.name for file in files if not is_there(file)]
        if missing:
            raise ModelError(f"model.path={folder} lacks {', '.join(missing)}, named in {INDEX}")
        return files
    if is_there(folder / SINGLE):
        return [folder / SINGLE]
    found = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise ModelError(f"model.path={folder} has no weights; expected {SINGLE} or {INDEX}, found {found}")


def read_contents(files: list[Path]) -> dict[str, Listed]:
    """By name. Raises `ModelError` for a file that is damaged, which a copy that was cut short is known by, and for
    quantised weights."""
    from safetensors import SafetensorError, safe_open

    contents: dict[str, Listed] = {}
    for file in files:
        refuse_pointer(file)
        try:
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    contents[name] = Listed(file, part.get_dtype(), tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file.name} in model.path={file.parent} is damaged: {error}") from error
    for name, found in contents.items():
        where = f"{found.file.name}: {name}"
        if found.number_format.startswith(QUANTISED_TYPES):
            raise quantised(found.file.parent, found.number_format, where)
        if name.endswith(QUANTISED_NAMES):
            raise quantised(found.file.parent, "GPTQ or AWQ", where)
    return contents


def require_fit(folder: Path, model: Any, contents: dict[str, Listed]) -> None:
    """`model` is `described_model`'s, and is of no use afterwards. Raises `ModelError` naming a tensor that is missing
    or of another shape, by the library's own rules for names."""
    import torch

    with loading:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        # Of tensors without values, nothing is read or allocated.
        empty = {name: torch.empty(one.shape, dtype=_dtype(one), device="meta") for name, one in contents.items()}
        rules = LoadStateDictConfig(
            device_map={"": "meta"},
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            weight_mapping=get_model_conversion_mapping(model),
        )
        try:
            info, _ = convert_and_load_state_dict_in_model(model, empty, rules)
            model.mark_tied_weights_as_initialized(info)
            model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
            model._adjust_missing_and_unexpected_keys(info)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ModelError(f"model.path={folder} cannot be loaded as a causal LM: {one_line(error)}") from error
    _refuse_misfits(folder, info.to_dict())
    for name in model.state_dict():
        if name in contents and contents[name].number_format in WHOLE_NUMBERS and "weight" in name:
            raise quantised(folder, contents[name].number_format, f"{contents[name].file.name}: {name}")


def _refuse_misfits(folder: Path, info: dict[str, Any]) -> None:
    faults = [
        f"tensor {name!r} is {list(found)}, expected {list(expected)} by config.json"
        for name, found, expected in sorted(info["mismatched_keys"])
    ] + [f"tensor {name!r} is missing" for name in sorted(info["missing_keys"])]
    if not faults:
        return
    unknown = sorted(info["unexpected_keys"])
    more = f"; the model has no {', '.join(map(repr, unknown[:SHOWN]))} of its files" if unknown else ""
    raise ModelError(f"model.path={folder} does not hold the model it describes: {faults[0]}{more}")


def _dtype(listed: Listed) -> Any:
    import torch

    return torch.int64 if listed.number_format in WHOLE_NUMBERS else torch.float32


def quantised(folder: Path, method: str, where: str) -> ModelError:
    return ModelError(
        f"model.path={folder} is quantised with {method} ({where}); weights to be trained must be unquantised"
    )
