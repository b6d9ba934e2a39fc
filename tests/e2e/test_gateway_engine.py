"""The stock client in front of a real vLLM: a conversation with tools, token by token what the engine was given and
what it sampled. The model has learned one conversation by heart, so that its calls parse."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from transformers import Qwen2ForCausalLM

from psrl.activities.sessions.sessions import find_session
from psrl.activities.sessions.view import BranchView, branches_of
from psrl.activities.weights.transport import Lease
from psrl.schemas.config import ModelSection, RolloutDtype, RolloutSection
from psrl.schemas.ids import RunId, SessionId, Version
from psrl.schemas.messages.rollout import EngineSpec
from psrl.schemas.stack import Stack
from psrl.schemas.weights import WeightManifest, WeightProbe
from psrl.workers.rollout.engine import DEFAULT_ENGINE, load_engine
from psrl.workers.rollout.host import Host
from tests.support.gateway_site import ADD, CONTEXT, INSTANCE, TEMPLATE, GatewaySite, gateway_site
from tests.support.tiny_model import tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TURNS = 5
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
BY_HEART = "<|user|>add<|user|>Count." + "<|tool|>3".join([f"<|assistant|>{CALL}<|eos|>"] * TURNS)
STEPS, GOOD_LOSS = 600, 0.005
PROBE_IDS = tuple(7 + (i * 37) % 90 for i in range(16))


class LearnedWeights:
    """The one version."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        self._model = model

    async def lease(self, run_id: RunId, version: Version) -> Lease:
        with torch.no_grad():
            table = self._model(torch.tensor([list(PROBE_IDS)])).logits[0].log_softmax(-1)
        logprobs = tuple(table[i, token].item() for i, token in enumerate(PROBE_IDS[1:]))
        probe = WeightProbe(token_ids=PROBE_IDS, logprobs=logprobs)
        tensors = {name: tensor for name, tensor in self._model.state_dict().items() if name != "lm_head.weight"}
        manifest = WeightManifest(run_id=run_id, version=version, transport="t", uri="", shards=(), probe=probe)
        return Lease(manifest, tensors, release=lambda: None)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen2ForCausalLM]:
    folder = tmp_path_factory.mktemp("learned")
    tokenizer = tiny_tokenizer(CONTEXT)
    model = tiny_model(tokenizer, 0, CONTEXT, hidden=64, spread=0.05)
    ids = torch.tensor([tokenizer.encode(BY_HEART)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        loss = model(ids, labels=ids).loss
        if loss.item() < GOOD_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, model


@pytest.fixture
async def site(
    temporal_client: Client, stack: Stack, store: AsyncEngine, learned: tuple[Path, Qwen2ForCausalLM]
) -> AsyncIterator[GatewaySite]:
    folder, model = learned
    spec = EngineSpec(
        run_id=RunId(""),
        model=ModelSection(path=str(folder)),
        rollout=RolloutSection(dtype=RolloutDtype.FP32, kv_cache_gb=0.064),
        context_tokens=CONTEXT,
        max_num_seqs=8,
        flush_tokens=16,
        flush_interval_s=60.0,
        seed=0,
    )
    hosted = Host(INSTANCE, load_engine(DEFAULT_ENGINE), LearnedWeights(model)), spec
    async with gateway_site(
        temporal_client, stack, store, folder, ["unused"], hosted=hosted, agentic_rl={"tool_parser": "hermes"}
    ) as opened:
        yield opened


class Listener:
    """vLLM's own outputs: of each request the ids that it was given and those that it sampled."""

    def __init__(self, site: GatewaySite) -> None:
        self.turns: list[tuple[list[int], list[int]]] = []
        llm = site.host.engine_of(site.run_id)._llm  # type: ignore[attr-defined]
        self._generate, llm.generate = llm.generate, self._listening

    async def _listening(self, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        outputs, sampled = self._generate(prompt, params, *args, **kwargs), []
        try:
            async for output in outputs:
                sampled += output.outputs[0].token_ids
                if output.finished:
                    self.turns.append((list(output.prompt_token_ids), sampled))
                yield output
        finally:
            await outputs.aclose()


def converse(client: openai.OpenAI, model: str, streaming: bool) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    for _ in range(TURNS):
        asked: Any = {"model": model, "messages": messages, "tools": [ADD], "temperature": 0}
        if streaming:
            with client.chat.completions.stream(**asked) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        messages += answered(message)
    return messages


async def converse_async(client: openai.AsyncOpenAI, model: str, streaming: bool) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    for _ in range(TURNS):
        asked: Any = {"model": model, "messages": messages, "tools": [ADD], "temperature": 0}
        if streaming:
            async with client.chat.completions.stream(**asked) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
        messages += answered(message)
    return messages


def answered(message: Any) -> list[Any]:
    said = [message.model_dump(exclude_none=True, exclude={"parsed"})]
    for call in message.tool_calls or []:
        asked = json.loads(call.function.arguments)
        said.append({"role": "tool", "tool_call_id": call.id, "content": str(asked["a"] + asked["b"])})
    return said


async def test_the_stock_client_converses_with_tools_and_the_stored_ids_are_vllms_turn_by_turn(
    site: GatewaySite,
) -> None:
    listener = Listener(site)
    headers = {"authorization": f"Bearer {site.run_token}"}
    conversations, stored = [], []
    async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=300) as http:
        for streaming in (False, True):
            for kind in (openai.OpenAI, openai.AsyncOpenAI):
                opened = (await http.post("/sessions")).json()
                where = {"base_url": site.url + opened["url"], "api_key": opened["token"], "max_retries": 0}
                client: Any = kind(**where)
                if kind is openai.OpenAI:
                    said = await asyncio.to_thread(converse, client, opened["model"], streaming)
                    client.close()
                else:
                    said = await converse_async(client, opened["model"], streaming)
                    await client.close()
                conversations.append(said)
                stored.append(await branch_of(site, opened["session_id"]))
    given = iter(listener.turns)
    for said, branch in zip(conversations, stored, strict=True):
        assert [message["role"] for message in said] == ["user", *["assistant", "tool"] * TURNS]
        assert len(branch.turns) == TURNS
        for turn in branch.turns:
            assert (branch.token_ids[: turn.prompt_tokens], turn.token_ids) == next(given)
    assert next(given, None) is None


async def branch_of(site: GatewaySite, name: str) -> BranchView:
    session = await find_session(site.store, site.run_id, SessionId(name))
    assert session is not None
    (branch,) = await branches_of(site.store, session)
    return branch
