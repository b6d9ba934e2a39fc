"""`python -m tests.histories.make`: record the histories that `tests/workflow/test_replay.py` replays.

One file per workflow type, of a small real run. Record anew only when a change of the workflows is meant to break runs
that are in progress; otherwise use `workflow.patched`.
"""

import asyncio
import tempfile
from pathlib import Path

import httpx
import openai
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowHistory

from psrl.activities.store.connections import async_store
from psrl.schemas.ids import InstanceId, SessionId, session_workflow
from psrl.schemas.stack import Stack
from psrl.workflows.sessions.session import Session
from tests.support.gateway_site import GatewaySite, gateway_site, make_talking_model
from tests.support.histories import FOLDER, local_activities, replay, write
from tests.support.postgres import running_postgres
from tests.support.scripted_engine import Script
from tests.support.small_stack import small_stack
from tests.support.temporal import TemporalServer, running_temporal
from tests.support.tiny_model import make_tiny_model

EXECUTIONS = 10
"""Three of the run, one instance, three steps, two rounds of validation, and groups."""


async def record(temporal: TemporalServer, postgres_url: str, home: Path) -> dict[str, list[WorkflowHistory]]:
    client: Client = await temporal.connect()
    store = async_store(postgres_url)
    histories = await record_run(client, site_of(temporal, postgres_url, home / "run"), store)
    of_session = await record_session(client, site_of(temporal, postgres_url, home / "session"), store)
    await store.dispose()
    return {**histories, Session.__name__: [of_session]}


def site_of(temporal: TemporalServer, postgres_url: str, home: Path) -> Stack:
    stack = Stack(
        home=home,
        temporal_address=temporal.address,
        postgres_url=postgres_url,
        coordinator_address="",
        weights_dir=home / "weights",
        checkpoints_dir=home / "checkpoints",
        instances=(InstanceId("rollout-0"),),
    )
    for folder in (home, stack.weights_dir, stack.checkpoints_dir):
        folder.mkdir()
    return stack


async def record_run(client: Client, stack: Stack, store: AsyncEngine) -> dict[str, list[WorkflowHistory]]:
    model = make_tiny_model(stack.home / "model")
    script = Script(token_s=0.05)
    async with small_stack(client, stack, store, model, script=script, instances=1) as small:
        config = small.config(psrl={"staleness": 2, "rollout_n": 2})
        config["data"] |= {"val_files": config["data"]["train_files"], "val_max_samples": 2}
        await small.run(config)
        return await small.histories(EXECUTIONS)


async def record_session(client: Client, stack: Stack, store: AsyncEngine) -> WorkflowHistory:
    """Two turns with a hang between them, and its end."""
    model = make_talking_model(stack.home / "model")
    async with gateway_site(client, stack, store, model, ["answer 0", "answer 1"]) as site:
        headers = {"authorization": f"Bearer {site.run_token}"}
        async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=60) as http:
            opened = (await http.post("/sessions")).json()
            workflow = client.get_workflow_handle(session_workflow(site.run_id, SessionId(opened["session_id"])))
            await converse(site, http, opened)
            await http.delete(f"/sessions/{opened['session_id']}")
        await workflow.result()
        return await workflow.fetch_history()


async def converse(site: GatewaySite, http: httpx.AsyncClient, opened: dict[str, str]) -> None:
    name, said = opened["session_id"], [{"role": "user", "content": "Hello."}]
    async with openai.AsyncOpenAI(base_url=site.url + opened["url"], api_key=opened["token"]) as agent:
        answer = await agent.chat.completions.create(model=opened["model"], messages=said)  # type: ignore[arg-type]
        await http.post("/control/hang", json=[{"session_id": name, "reason": "a look at it"}])
        await http.post("/control/continue", json=[name])
        said += [
            {"role": "assistant", "content": answer.choices[0].message.content or ""},
            {"role": "user", "content": "Again."},
        ]
        await agent.chat.completions.create(model=opened["model"], messages=said)  # type: ignore[arg-type]


def most_telling(kind: str, found: list[WorkflowHistory]) -> WorkflowHistory:
    """The run's first execution, which admits and starts; of the others the longest."""
    if kind == "TrainingRun":
        return min(found, key=lambda history: history.events[0].event_time.ToNanoseconds())
    return max(found, key=lambda history: (local_activities(history), len(history.events)))


def main() -> None:
    with (
        running_postgres() as postgres,
        running_temporal() as temporal,
        postgres.database() as postgres_url,
        tempfile.TemporaryDirectory(prefix="psrl-histories-") as folder,
    ):
        histories = asyncio.run(record(temporal, postgres_url, Path(folder)))
    for kind, found in histories.items():
        chosen = most_telling(kind, found)
        asyncio.run(replay(chosen))
        write(chosen, FOLDER / f"{kind}.json")
        print(f"{kind}: {len(chosen.events)} events")


if __name__ == "__main__":
    main()
