"""Code of ours that runs inside vLLM's worker process: the receiving half of a weight update.

Registered as a weight-transfer backend of vLLM, so that AsyncLLM's own start/update/finish calls drive it. Promises:
after `finish` every layer, tied heads and experts included, computes with the new weights; after a failure the model
holds no half-built layer, so that the process survives until a complete update repairs it.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from .staging import Entry, read_staged
from .start_fault import report_start_faults
from .unfit import told_apart

BACKEND = "psrl"
PR_SET_PDEATHSIG = 1


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on beforehand."""


@dataclass
class StagedInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Verified tensors the host holds in memory: `StagedWeights.describe`."""

    path: str
    bytes: int
    layout: list[Entry]


class StagedWeightTransfer(WeightTransferEngine[NoInit, StagedInfo]):  # type: ignore[misc]
    init_info_cls = NoInit
    update_info_cls = StagedInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _die_with_parent()
        self._tied = _tied(self.model)
        # It warns at every update of layers that are tied or have nothing to load. Whether a version is complete is
        # checked by name and shape before the engine is touched, and by the probe afterwards.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Called once by AsyncLLM."""

    def start_weight_update(self) -> None:
        self._discard_unfinished()
        self._forget_packed_experts()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: StagedInfo) -> None:
        staged = read_staged(update_info.path, update_info.bytes, update_info.layout)
        try:
            with told_apart():
                self.model.load_weights(iter(staged))
        except BaseException:
            self._discard_unfinished()
            raise

    def finish_weight_update(self) -> None:
        with told_apart():
            finalize_layerwise_reload(self.model, self.model_config)
            self._refresh_tied()

    def shutdown(self) -> None:
        """Holds nothing."""

    def _discard_unfinished(self) -> None:
        """Give layers of an update that did not finish their former tensors back. Their buffered weights would
        otherwise be counted into the next update, which could then finish a layer too early."""
        unfinished = False
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                unfinished = True
                info.loaded_weights.clear()
                info.load_numel = 0
        if unfinished:
            finalize_layerwise_reload(self.model, self.model_config)

    def _forget_packed_experts(self) -> None:
        """On CPU experts are packed when their kernel is made, and an update that finds one copies unpacked weights
        under it."""
        if not current_platform.is_cpu():
            return
        for layer in self.model.modules():
            if isinstance(method := getattr(layer, "quant_method", None), FusedMoEMethodBase):
                method.moe_kernel = None

    def _refresh_tied(self) -> None:
        """On CPU a head multiplies with a packed copy of its own, which a reload of the embedding does not reach."""
        for head, embedding in self._tied:
            head.weight = embedding.weight
            head.quant_method.process_weights_after_loading(head)


def _tied(model: torch.nn.Module) -> list[tuple[ParallelLMHead, VocabParallelEmbedding]]:
    """Heads that the model has given the weight of an embedding."""
    layers = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    heads = [layer for layer in layers if isinstance(layer, ParallelLMHead)]
    return [(head, other) for head in heads for other in layers if other is not head and other.weight is head.weight]


class WorkerExtension:
    """Mixed into vLLM's worker; imported by it, which registers the backend."""

    _weight_update_active: bool

    def abandon_weight_update(self) -> None:
        """Close an update session that failed while it was being finished."""
        self._weight_update_active = False


def _die_with_parent() -> None:
    """A host that was killed cannot stop its engine."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


report_start_faults()
WeightTransferEngineFactory.register_engine(BACKEND, StagedWeightTransfer)
