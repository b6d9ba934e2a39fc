"""The usable prompts of a run, tokenised, with the fingerprint that ties a run to the bytes it was admitted with."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from ...schemas.config import RunConfig
from ...schemas.config.data import TEMPLATE_SUFFIX
from ...schemas.errors import DataError
from ...schemas.text import shown
from ..environments.load import Tools, tool_schemas
from ..store.codec import encode_ids
from .files import data_files
from .notes import Notes
from .prompt import Prompts, RenderedPrompt
from .rows import Row, read_rows
from .template import ChatTemplate
from .tokenizer import Tokenizer, appended_ids, load_tokenizer, tokenizer_files

TOKENIZE_BATCH = 512
"""Rows tokenised in one call: fast tokenizers work in parallel within a call."""
KEPT_DATASETS = 4
"""Loaded data sets one process keeps."""
"""Schemas of what the policy may call: prompts are laid out with them."""


class Prompt(NamedTuple):
    """One usable row."""

    row: int
    """Number of the row, counted over all files from 0; skipped rows count too."""
    ids: bytes
    """Encoded by the store's codec."""
    text: str
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    """Of a chat; for rewards that judge conversations."""


class Dataset(NamedTuple):
    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    skipped_too_long: int
    """Training rows left out because their prompt is longer than data.max_prompt_length."""
    fingerprint: str
    notes: tuple[str, ...] = ()
    """What people should know of the data although nothing is wrong with them."""


class DatasetCache:
    """Loaded data sets by fingerprint. Safe to call from several threads: a data set is loaded once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[str, Dataset] = OrderedDict()

    def load(self, config: RunConfig, tools: Tools | None = None) -> Dataset:
        """The data set the files hold now. `tools`: as in `fingerprint`."""
        with self._lock:
            tools = tool_schemas(config) if tools is None else tools
            dataset = self._kept.get(fingerprint(config, tools)) or load_dataset(config, tools)
            self._keep(dataset)
            return dataset

    def admitted(self, config: RunConfig, wanted: str) -> Dataset:
        """The data set a run was admitted with. Raises `DataError` when it is not in memory and the files have changed
        since: the position in the data would mean other prompts."""
        with self._lock:
            found = self._kept.get(wanted)
            if found is None:
                found = load_dataset(config)
                if found.fingerprint != wanted:
                    raise DataError(
                        "data.train_files, data.val_files or the tokenizer of model.path have changed since the run "
                        f"was admitted (fingerprint {found.fingerprint[:12]}, was {wanted[:12]}): restore them, or "
                        f"start a new run; files: {', '.join(config.data.train_files + config.data.val_files)}"
                    )
            self._keep(found)
            return found

    def _keep(self, dataset: Dataset) -> None:
        self._kept[dataset.fingerprint] = dataset
        self._kept.move_to_end(dataset.fingerprint)
        while len(self._kept) > KEPT_DATASETS:
            self._kept.popitem(last=False)


def load_dataset(config: RunConfig, tools: Tools | None = None) -> Dataset:
    """Read and check every file. `tools`: as in `fingerprint`. Raises `ConfigError`, `DataError` or `ModelError`."""
    tools = tool_schemas(config) if tools is None else tools
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    notes = Notes()
    template = ChatTemplate(tokenizer, config.model.path, config.data.chat_template)
    prompts = Prompts(config.data.prompt_key, template, notes, tools)
    loader = Loader(config, tokenizer, prompts, notes)
    train, skipped = loader.load("data.train_files", config.data.train_files)
    validation: list[Prompt] = []
    if config.data.val_files:
        validation, _ = loader.load("data.val_files", config.data.val_files)
    chosen = tuple(validation[: config.data.val_max_samples])
    return Dataset(tuple(train), chosen, skipped, fingerprint(config, tools), notes.lines())


def fingerprint(config: RunConfig, tools: Tools | None = None) -> str:
    """Over the bytes of every data file in order, the tokenizer's files, and the settings that choose among rows.
    `tools`: where they are known; asking for them may start the programs that offer them."""
    data = config.data
    digest = hashlib.sha256()
    train = data_files(data.train_files, "data.train_files")
    settings: list[Any] = [
        data.prompt_key,
        data.max_prompt_length,
        data.val_max_samples,
        len(train),
        data.chat_template,
    ]
    tools = tool_schemas(config) if tools is None else tools
    if tools:
        settings.append(tools)
    digest.update(json.dumps(settings).encode())
    files = [("data.train_files", file) for file in train]
    files += [("data.val_files", file) for file in data_files(data.val_files, "data.val_files")]
    files += [("model.path", file) for file in tokenizer_files(config.model.path)]
    if data.chat_template and data.chat_template.endswith(TEMPLATE_SUFFIX):
        files.append(("data.chat_template", Path(data.chat_template)))
    for key, file in files:
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DataError(f"{key}: {file.absolute()} cannot be read: {error.strerror}") from error
        except ValueError as error:  # a name that no file can have
            raise DataError(f"{key}: {shown(str(file))} cannot be read: {error}") from error
    return digest.hexdigest()


class Loader:
    """Reads the files of one run, for training and for validation."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer, prompts: Prompts, notes: Notes) -> None:
        self._limit = config.data.max_prompt_length
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._notes = notes
        self._appended = appended_ids(tokenizer)

    def load(self, key: str, entries: tuple[str, ...]) -> tuple[list[Prompt], int]:
        """Usable prompts and the number of over-long ones."""
        prompts: list[Prompt] = []
        skipped = number = 0
        files = data_files(entries, key)
        rows = (row for file in files for row in read_rows(file, key))
        for rendered in self._batches(rows):
            for item, ids in zip(rendered, self._tokenize(rendered), strict=True):
                if not ids:
                    raise DataError(f"{item.location}: the prompt has no tokens")
                if len(ids) > self._limit:
                    skipped += 1
                else:
                    prompts.append(
                        Prompt(
                            number,
                            encode_ids(ids),
                            item.text,
                            item.data_source,
                            item.ground_truth,
                            item.extra,
                            item.messages,
                        )
                    )
                number += 1
        if not prompts:
            raise DataError(
                f"{key}: no usable prompt in {', '.join(map(str, files))}: {number} rows, {skipped} of them longer "
                f"than data.max_prompt_length={self._limit} tokens"
            )
        return prompts, skipped

    def _batches(self, rows: Iterable[Row]) -> Iterator[list[RenderedPrompt]]:
        rendered = (self._prompts.render(row) for row in rows)
        while batch := list(islice(rendered, TOKENIZE_BATCH)):
            yield batch

    def _tokenize(self, batch: list[RenderedPrompt]) -> list[list[int]]:
        """Ids of each prompt. A data set rarely mixes the two kinds, so this is one call."""
        ids: list[list[int]] = [[] for _ in batch]
        for special in (True, False):
            chosen = [number for number, item in enumerate(batch) if item.special_tokens is special]
            if chosen:
                texts = [batch[number].text for number in chosen]
                encoded = self._tokenizer(texts, add_special_tokens=special, verbose=False)
                for number, found in zip(chosen, encoded["input_ids"], strict=True):
                    ids[number] = self._without_end(found, batch[number].location) if special else found
        return ids

    def _without_end(self, ids: list[int], location: str) -> list[int]:
        if not self._appended:
            return ids
        name = self._tokenizer.decode(self._appended, skip_special_tokens=False)
        self._notes.add(
            f"the tokenizer of model.path writes {name!r} after plain text: prompts are left open", location
        )
        return ids[: -len(self._appended)]
