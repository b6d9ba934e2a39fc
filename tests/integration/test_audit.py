"""`psrl audit`: clean on a run that kept its promises; on a store that was damaged on purpose, exactly the broken
promise is named, with the ids, and the exit status is 1."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from psrl.schemas.stack import Stack
from psrl.workers.cli.commands import app
from tests.support.kept_run import RUN, make_kept_run

pytestmark = pytest.mark.integration

FREE = """
    ALTER TABLE batch_members DROP CONSTRAINT ck_batch_members_staleness_bound;
    ALTER TABLE batch_members DROP CONSTRAINT pk_batch_members;
    ALTER TABLE segments DROP CONSTRAINT pk_segments;
    ALTER TABLE segments DROP CONSTRAINT ck_segments_ids_match_count;
    ALTER TABLE segments DROP CONSTRAINT ck_segments_logprobs_match_count;
    ALTER TABLE segments DROP CONSTRAINT ck_segments_sampled_by_an_engine;
    ALTER TABLE segments DROP CONSTRAINT fk_segments_run_id_group_id_index_turn_turns;
    ALTER TABLE turns DROP CONSTRAINT ck_turns_finished_with_its_end;
    ALTER TABLE groups DROP CONSTRAINT ck_groups_status_known;
    ALTER TABLE trajectories DROP CONSTRAINT ck_trajectories_reward_only_when_scored;
"""
"""The database itself refuses some of the damage; the audit must not rely on that."""


WITHOUT_VERSION_1 = """
    UPDATE segments SET version = 0 WHERE version = 1 AND group_id < '000005';
    UPDATE segments SET version = 2 WHERE version = 1;
    UPDATE groups SET version_tag = 0 WHERE group_id = '000004';
    UPDATE batch_members SET version_tag = 0 WHERE group_id = '000004';
    UPDATE groups SET version_tag = 2 WHERE group_id = '000005';
    UPDATE batch_members SET version_tag = 2 WHERE group_id = '000005';
    DELETE FROM weight_versions WHERE version = 1
"""
"""No token and no group names it any more."""


class Damage(NamedTuple):
    """What was done to the store, and what the audit must say of it."""

    promise: str
    statement: str
    fault: str
    ids: tuple[str, ...]


DAMAGES = {
    # --- L1
    "trained too late": Damage(
        "L1",
        "UPDATE batch_members SET version_tag = 0 WHERE group_id = '000006';"
        "UPDATE groups SET version_tag = 0 WHERE group_id = '000006'",
        "a trajectory was trained outside V..V+eta",
        ("000006/0 in buffer 2, tag 0", "000006/1 in buffer 2, tag 0"),
    ),
    "trained too early": Damage(
        "L1",
        "UPDATE batch_members SET version_tag = 1 WHERE group_id = '000000';"
        "UPDATE groups SET version_tag = 1 WHERE group_id = '000000';"
        "UPDATE segments SET version = 1 WHERE group_id = '000000'",
        "a trajectory was trained outside V..V+eta",
        ("000000/0 in buffer 0, tag 1", "000000/1 in buffer 0, tag 1"),
    ),
    "another tag in the batch": Damage(
        "L1",
        "UPDATE batch_members SET version_tag = 1 WHERE group_id = '000002' AND index = 1",
        "a batch holds another tag or another eta than the group and the run",
        ("000002/1 has tag 1 and eta 1",),
    ),
    "another eta in the batch": Damage(
        "L1",
        "UPDATE batch_members SET staleness = 9 WHERE group_id = '000002' AND index = 1",
        "a batch holds another tag or another eta than the group and the run",
        ("000002/1 has tag 0 and eta 9",),
    ),
    "a token below the tag": Damage(
        "L1",
        "UPDATE segments SET version = 0 WHERE group_id = '000005' AND index = 1 AND seq = 0",
        "tokens are older than their group's tag",
        ("000005/1 segment 0 of version 0, tag 1",),
    ),
    "a token of the future": Damage(
        "L1",
        "UPDATE segments SET version = 3 WHERE group_id = '000005' AND index = 1 AND seq = 1",
        "trained tokens are newer than the model that trained on them",
        ("000005/1 segment 1 of version 3, buffer 2",),
    ),
    "a token of no version": Damage(
        "L1",
        "UPDATE segments SET version = 7 WHERE group_id = '000011'",
        "tokens come from a version that was never published",
        ("version 7 in 2 segments, first of group 000011",),
    ),
    "a tag of no version": Damage(
        "L1",
        "UPDATE groups SET version_tag = 8 WHERE group_id = '000010'",
        "a group is tagged with a version that was never published",
        ("000010 has tag 8",),
    ),
    # --- L2
    "a trajectory in two batches": Damage(
        "L2",
        "INSERT INTO batch_members SELECT run_id, group_id, index, 1, version_tag, staleness"
        " FROM batch_members WHERE group_id = '000000' AND index = 1",
        "a trajectory is in more than one batch",
        ("000000/1 in buffers 0, 1",),
    ),
    "a group in two batches": Damage(
        "L2",
        "UPDATE batch_members SET buffer = 1 WHERE group_id = '000000' AND index = 1",
        "a group is in more than one batch",
        ("000000 in buffers 0 to 1",),
    ),
    "a group in part": Damage(
        "L2",
        "DELETE FROM batch_members WHERE group_id = '000000' AND index = 1",
        "a group was only partly trained on",
        ("000000 with 1 trajectories of 2",),
    ),
    "an episode in part": Damage(
        "L2",
        "DELETE FROM batch_members WHERE group_id = '000005' AND index = 2",
        "an episode was only partly trained on",
        ("000005/2",),
    ),
    "trained on validation": Damage(
        "L2",
        "UPDATE groups SET purpose = 'validation' WHERE group_id = '000006'",
        "a batch holds a group that must not be trained on",
        ("000006 is for validation",),
    ),
    "trained, but in no batch": Damage(
        "L2",
        "UPDATE groups SET status = 'trained' WHERE group_id = '000008'",
        "a trained group is in no batch, or one in a batch is not trained",
        ("000008 is trained",),
    ),
    "in a batch, but dropped": Damage(
        "L2",
        "UPDATE groups SET status = 'dropped', reason = 'slow' WHERE group_id = '000004'",
        "a trained group is in no batch, or one in a batch is not trained",
        ("000004 is dropped",),
    ),
    "a small batch": Damage(
        "L2",
        "DELETE FROM batch_members WHERE group_id = '000004'",
        "a batch does not have exactly B groups",
        ("buffer 1 with 1 groups of 2",),
    ),
    "a missing batch": Damage("L2", "DELETE FROM batches WHERE buffer = 1", "batches are missing", ("buffers 1 to 1",)),
    "a version without its batch": Damage(
        "L2",
        "DELETE FROM batches WHERE buffer = 2; DELETE FROM batches WHERE buffer = 1",
        "batches and published versions are out of step",
        ("newest batch is buffer 0, newest version is 3",),
    ),
    "done, but not trained": Damage(
        "L2",
        "UPDATE runs SET phase = 'done'; UPDATE groups SET status = 'aborted', reason = 'end' WHERE status = 'live'",
        "batches and published versions are out of step",
        ("newest batch is buffer 2, newest version is 3",),
    ),
    "a place trained twice": Damage(
        "L2",
        "UPDATE groups SET position = 2, row = 102 WHERE group_id = '000006'",
        "a data position was trained on twice",
        ("epoch 0 position 2 by groups 000002, 000006",),
    ),
    "a prompt trained twice": Damage(
        "L2",
        "UPDATE groups SET row = 102 WHERE group_id = '000006'",
        "a prompt was trained on twice in one epoch",
        ("epoch 0 row 102 by groups 000002, 000006",),
    ),
    "a group lost at the end": Damage(
        "L2",
        "UPDATE runs SET phase = 'done', total_steps = 3",
        "a drawn group was neither trained on nor accounted for",
        ("000011 is live",),
    ),
    "a group lost for no status": Damage(
        "L2",
        "UPDATE groups SET status = 'gone' WHERE group_id = '000003'",
        "a drawn group was neither trained on nor accounted for",
        ("000003 is gone",),
    ),
    "a group lost without a reason": Damage(
        "L2",
        "UPDATE groups SET reason = '' WHERE group_id = '000003'",
        "a group was dropped without a reason",
        ("000003 is failed",),
    ),
    "a place never drawn": Damage(
        "L2",
        "DELETE FROM groups WHERE group_id = '000003'; DELETE FROM segments WHERE group_id = '000003'",
        "data positions were skipped",
        ("1 before epoch 0 position 4",),
    ),
    # --- L5, L6
    "an id too few": Damage(
        "L5",
        "UPDATE segments SET token_ids = substr(token_ids, 5) WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "a segment's ids or log-probs differ in number from its tokens",
        ("000004/0 turn 0 segment 1 of 3 tokens, 8 bytes of ids, 12 of log-probs",),
    ),
    "a log-prob too few": Damage(
        "L5",
        "UPDATE segments SET logprobs = substr(logprobs, 5) WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "a segment's ids or log-probs differ in number from its tokens",
        ("000004/0 turn 0 segment 1 of 3 tokens, 12 bytes of ids, 8 of log-probs",),
    ),
    "a trajectory that counts more": Damage(
        "L5",
        "UPDATE trajectories SET tokens = 6 WHERE group_id = '000004' AND index = 0",
        "a trajectory's tokens are not those of its turns",
        ("000004/0 counts 6, its turns 5",),
    ),
    "a trajectory that lost its turn": Damage(
        "L5",
        "DELETE FROM turns WHERE group_id = '000011' AND index = 0;"
        "DELETE FROM segments WHERE group_id = '000011' AND index = 0",
        "a trajectory's tokens are not those of its turns",
        ("000011/0 counts 3, its turns 0",),
    ),
    "a turn that counts the environment's tokens": Damage(
        "L5",
        "UPDATE turns SET tokens = 6 WHERE group_id = '000007' AND index = 1 AND turn = 1;"
        "UPDATE trajectories SET tokens = 9 WHERE group_id = '000007' AND index = 1",
        "a turn's tokens are not those of its segments",
        ("000007/1 turn 1 counts 6, stored are 2",),
    ),
    "a turn that lost its segments": Damage(
        "L5",
        "DELETE FROM segments WHERE group_id = '000011' AND index = 0",
        "a turn's tokens are not those of its segments",
        ("000011/0 turn 0 counts 3, stored are 0",),
    ),
    "segments that lost their turn": Damage(
        "L5",
        "DELETE FROM turns WHERE group_id = '000011' AND index = 0;"
        "UPDATE trajectories SET tokens = 0 WHERE group_id = '000011' AND index = 0",
        "a turn's tokens are not those of its segments",
        ("000011/0 turn 0 counts nothing, stored are 3",),
    ),
    "a log-prob of what nobody sampled": Damage(
        "L5",
        "UPDATE segments SET logprobs = token_ids WHERE kind = 'environment' AND group_id = '000007'",
        "a segment's ids or log-probs differ in number from its tokens",
        ("000007/1 turn 1 segment 0 of 4 tokens, 16 bytes of ids, 16 of log-probs",),
    ),
    "sampled tokens taken for the environment's": Damage(
        "L5",
        "UPDATE segments SET kind = 'environment', logprobs = NULL"
        " WHERE group_id = '000011' AND index = 0;"
        "UPDATE turns SET tokens = 0 WHERE group_id = '000011' AND index = 0;"
        "UPDATE trajectories SET tokens = 0 WHERE group_id = '000011' AND index = 0",
        "tokens that no engine sampled have a version or an instance, or sampled ones have none",
        ("000011/0 turn 0 segment 0 (environment)",),
    ),
    "an environment that interrupts": Damage(
        "L5",
        "UPDATE segments SET seq = 1 - seq, \"end\" = CASE kind WHEN 'environment' THEN 'stop' END"
        " WHERE group_id = '000007' AND index = 1 AND turn = 1",
        "the environment spoke after the policy's answer had begun",
        ("000007/1 turn 1",),
    ),
    "a turn over its budget": Damage(
        "L5",
        "UPDATE segments SET tokens = 5, token_ids = token_ids || substr(token_ids, 5),"
        " logprobs = logprobs || substr(logprobs, 5) WHERE group_id = '000004' AND index = 0 AND seq = 1;"
        "UPDATE turns SET tokens = 7 WHERE group_id = '000004' AND index = 0;"
        "UPDATE trajectories SET tokens = 7 WHERE group_id = '000004' AND index = 0",
        "a turn is longer than data.max_response_length",
        ("000004/0 turn 0 has 7 tokens of 6",),
    ),
    "a branch that left a turn that is not there": Damage(
        "L5",
        "UPDATE trajectories SET forked_turn = 1 WHERE group_id = '000005' AND index = 2",
        "a branch left a turn that has no end, or another episode",
        ("000005/2 left 0 after turn 1",),
    ),
    "a branch that left another episode": Damage(
        "L5",
        "UPDATE trajectories SET forked_index = 1 WHERE group_id = '000005' AND index = 2",
        "a branch left a turn that has no end, or another episode",
        ("000005/2 left 1 after turn 0",),
    ),
    "a hole in a turn": Damage(
        "L6",
        "UPDATE segments SET seq = 5 WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "segments of a turn are missing or stored twice",
        ("000004/0 turn 0 has segments 0, 5",),
    ),
    "a segment stored twice": Damage(
        "L6",
        "INSERT INTO segments SELECT * FROM segments WHERE group_id = '000004' AND index = 0 AND seq = 0;"
        "UPDATE turns SET tokens = 7 WHERE group_id = '000004' AND index = 0;"
        "UPDATE trajectories SET tokens = 7 WHERE group_id = '000004' AND index = 0;"
        "UPDATE runs SET config = jsonb_set(config, '{data,max_response_length}', '9')",
        "segments of a turn are missing or stored twice",
        ("000004/0 turn 0 has segments 0, 0, 1",),
    ),
    "a missing turn": Damage(
        "L6",
        "UPDATE segments SET turn = 1 WHERE group_id = '000004' AND index = 0;"
        "UPDATE turns SET turn = 1 WHERE group_id = '000004' AND index = 0",
        "turns are missing",
        ("000004/0 has 1 turns, the last is turn 1",),
    ),
    "a first segment with a past": Damage(
        "L6",
        "UPDATE segments SET kv_kept = true WHERE group_id = '000007' AND index = 1 AND turn = 1 AND seq = 1",
        "a segment that continues none has kept a KV cache, or lost one",
        ("000007/1 turn 1 segment 1",),
    ),
    # --- L8
    "a row after the end": Damage(
        "L8",
        "INSERT INTO segments (run_id, group_id, index, turn, seq, fence, version, instance, tokens, token_ids,"
        " logprobs, started_at, finished_at) SELECT run_id, group_id, index, turn, 2, 3, version, instance, 0, '', '',"
        " started_at, finished_at FROM segments WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "rows were stored after the end of their turn",
        ("000004/0 turn 0 segment 2",),
    ),
    "two ends": Damage(
        "L8",
        "UPDATE segments SET \"end\" = 'stop' WHERE group_id = '000004' AND index = 0 AND seq = 0",
        "a turn ended more than once, or otherwise than its last segment",
        ("000004/0 turn 0 ended as stop, its segments as stop, stop",),
    ),
    "no end": Damage(
        "L8",
        "UPDATE segments SET \"end\" = NULL WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "a turn ended more than once, or otherwise than its last segment",
        ("000004/0 turn 0 ended as stop, its segments as nothing",),
    ),
    "scored, but not ended": Damage(
        "L8",
        "UPDATE segments SET \"end\" = NULL WHERE group_id = '000004' AND index = 0 AND seq = 1;"
        "UPDATE turns SET \"end\" = NULL WHERE group_id = '000004' AND index = 0",
        "a trajectory continued or finished before a turn had ended",
        ("000004/0 is scored, turn 0 has no end",),
    ),
    "cut, though nobody had ended it": Damage(
        "L8",
        "UPDATE trajectories SET outcome = NULL WHERE group_id = '000005'",
        "a trajectory continued or finished before a turn had ended",
        ("000005/2 is scored, turn 1 has no end",),
    ),
    "a turn that followed too early": Damage(
        "L8",
        "UPDATE segments SET \"end\" = NULL WHERE group_id = '000007' AND index = 1 AND turn = 0;"
        "UPDATE turns SET \"end\" = NULL WHERE group_id = '000007' AND index = 1 AND turn = 0;"
        "UPDATE trajectories SET status = 'pending', reward = NULL WHERE group_id = '000007' AND index = 1",
        "a trajectory continued or finished before a turn had ended",
        ("000007/1 is pending, turn 0 has no end",),
    ),
    "finished, but nothing stored": Damage(
        "L8",
        "DELETE FROM segments WHERE group_id = '000008' AND index = 1;"
        "DELETE FROM turns WHERE group_id = '000008' AND index = 1;"
        "UPDATE trajectories SET tokens = 0 WHERE group_id = '000008' AND index = 1",
        "a trajectory continued or finished before a turn had ended",
        ("000008/1 is scored, turn 0 has no end",),
    ),
    "another end": Damage(
        "L8",
        "UPDATE turns SET \"end\" = 'length' WHERE group_id = '000004' AND index = 0",
        "a turn ended more than once, or otherwise than its last segment",
        ("000004/0 turn 0 ended as length, its segments as stop",),
    ),
    "a zombie's row": Damage(
        "L8",
        "UPDATE segments SET fence = 5 WHERE group_id = '000004' AND index = 0 AND seq = 0",
        "a row of an abandoned attempt follows one of its successor",
        ("000004/0 turn 0 segment 1 of attempt 2 after 5",),
    ),
    "a stranger's row": Damage(
        "L8",
        "UPDATE segments SET fence = 10 WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "a row was stored by an attempt that never owned the trajectory",
        ("000004/0 segment 1 of attempt 10, owner 9",),
    ),
    # --- L9, rows; L10
    "a version missing": Damage(
        "L9",
        WITHOUT_VERSION_1,
        "published versions have holes",
        ("version 1",),
    ),
    "another manifest": Damage(
        "L9",
        "UPDATE weight_versions SET bytes = bytes + 1 WHERE version = 1",
        "a version's row does not fit its manifest or its path",
        ("version 1",),
    ),
    "two versions in one place": Damage(
        "L9",
        "UPDATE weight_versions SET uri = 'kept/v000002',"
        " manifest = jsonb_set(manifest, '{uri}', '\"kept/v000002\"') WHERE version = 1",
        "versions share one path",
        ("version 1 in kept/v000002", "version 2 in kept/v000002"),
    ),
    "trained without a reward": Damage(
        "L10",
        "UPDATE trajectories SET status = 'failed', reward = NULL, reward_error = 'slow'"
        " WHERE group_id = '000004' AND index = 0",
        "a trajectory was trained without a reward",
        ("000004/0 is failed with reward none",),
    ),
    "a reward that is no number": Damage(
        "L10",
        "UPDATE trajectories SET reward = 'NaN' WHERE group_id = '000004' AND index = 0",
        "a scored trajectory has no finite reward",
        ("000004/0 has reward NaN",),
    ),
    "scored with nothing": Damage(
        "L10",
        "UPDATE trajectories SET reward = NULL WHERE group_id = '000008' AND index = 0",
        "a scored trajectory has no finite reward",
        ("000008/0 has reward none",),
    ),
    "a failure that became a zero": Damage(
        "L10",
        "UPDATE trajectories SET reward = 0.0 WHERE group_id = '000003' AND index = 1",
        "a trajectory that was not scored has a reward",
        ("000003/1 is failed with reward 0",),
    ),
    "a failure without a word": Damage(
        "L10",
        "UPDATE trajectories SET reward_error = '' WHERE group_id = '000003' AND index = 1",
        "a failed reward does not say why",
        ("000003/1",),
    ),
    "a branch with a reward of its own": Damage(
        "L10",
        "UPDATE trajectories SET reward = 0.25 WHERE group_id = '000005' AND index = 2",
        "branches of one episode have different scores",
        ("000005/2 is scored with reward 0.25, 0 is scored with 0.5",),
    ),
    "a missing log-prob that was not counted": Damage(
        "L10",
        "UPDATE segments SET logprobs = overlay(logprobs placing '\\x0000c07f' from 1)"
        " WHERE group_id = '000004' AND index = 0 AND seq = 1",
        "tokens without a log-prob were not counted",
        ("buffer 1 counted 0, stored are 1",),
    ),
}


@pytest.fixture
def engine(engine: Engine, stack: Stack) -> Engine:
    """With a run in its store."""
    make_kept_run(engine, stack.weights_dir)
    return engine


def psrl(stack: Stack, *arguments: str) -> Result:
    return CliRunner(env={"PSRL_HOME": str(stack.home)}).invoke(app, list(arguments))


def damage(engine: Engine, statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements.split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement)


def broken(stack: Stack) -> dict[str, dict[str, Any]]:
    """By promise: fault -> finding. Asks for the exit status, too."""
    result = psrl(stack, "audit", RUN, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["ok"] else 1), result.output
    return {
        check["promise"]: {finding["fault"]: finding for finding in check["findings"]}
        for check in told["checks"]
        if not check["ok"]
    }


def test_a_run_that_kept_its_promises_is_clean_and_every_line_says_what_was_looked_at(
    stack: Stack, engine: Engine
) -> None:
    result = psrl(stack, "audit", RUN)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "L1  bound: 13 trained trajectories, 1 buffers after their tag at most, 1 allowed (eta), 41 segments, "
        "4 versions in them ... ok",
        "L2  once: 6 groups, 13 trajectories, 3 batches, 2 aborted, 1 dropped, 1 failed, 1 filtered, 1 live, "
        "1 data positions waiting to be redrawn ... ok",
        "L5  tokens: 41 segments, 95 sampled tokens, 9 environment tokens, 26 trajectories, 1 forks ... ok",
        "L6  prefix: 25 turns, 12 of several segments, 12 moved ... ok",
        "L8  one answer per turn: 25 turns, 22 ended, 12 by several attempts, 2 late results refused ... ok",
        "L9  versions are immutable: 4 versions published, 4 kept on disk and checked ... ok",
        "L10 a failure is not a zero: 18 trajectories scored, 2 failed, 0 trained tokens without a log-prob ... ok",
        "run kept (running): every promise holds",
    ]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_the_store_breaks_exactly_the_promise_it_concerns(stack: Stack, engine: Engine, name: str) -> None:
    done = DAMAGES[name]
    assert broken(stack) == {}
    damage(engine, FREE + done.statement)
    found = broken(stack)
    assert list(found) == [done.promise], found
    assert tuple(found[done.promise][done.fault]["ids"]) == done.ids, found


def test_a_broken_promise_names_ten_ids_and_the_total(stack: Stack, engine: Engine) -> None:
    damage(engine, "UPDATE trajectories SET reward = NULL WHERE status = 'scored' AND group_id > '000002'")
    result = psrl(stack, "audit", RUN)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = lines.index("    a scored trajectory has no finite reward, 12 in total:")
    assert lines[at + 1] == "      000004/0 has reward none"
    assert lines[at + 11] == "      and 2 more"
    assert lines[-1] == "run kept (running): BROKEN: L10"


def _cut(folder: Path) -> None:
    shard = folder / "shard-000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])


def _flip(folder: Path) -> None:
    shard = folder / "shard-000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def _lose_shard(folder: Path) -> None:
    (folder / "shard-000.safetensors").unlink()


def _lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _replace(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "v000000", folder)


@pytest.mark.parametrize("harm", [_cut, _flip, _lose_shard, _lose_manifest, _replace])
def test_a_kept_version_that_is_not_what_was_published_breaks_l9(
    stack: Stack, engine: Engine, harm: Callable[[Path], None]
) -> None:
    harm(stack.weights_dir / RUN / "v000001")
    found = broken(stack)
    assert list(found) == ["L9"], found
    (told,) = found["L9"]["a kept version is not what was published"]["ids"]
    assert told.startswith("version 1: ")


@pytest.mark.parametrize(("version", "needed"), [(3, True), (2, True), (1, False), (0, False)])
def test_the_newest_version_and_the_tags_of_live_groups_must_be_there(
    stack: Stack, engine: Engine, version: int, needed: bool
) -> None:
    shutil.rmtree(stack.weights_dir / RUN / f"v{version:06d}")
    expected = {"a version is needed, but not kept": [f"version {version}"]}
    told = {fault: found["ids"] for fault, found in broken(stack).get("L9", {}).items()}
    assert told == (expected if needed else {})
    damage(
        engine,
        "UPDATE runs SET phase = 'done', total_steps = 3;"
        "UPDATE groups SET status = 'aborted', reason = 'end' WHERE status = 'live'",
    )
    assert broken(stack) == {}, "nothing needs a version of a run that is done"


def test_bytes_beyond_the_newest_version_are_a_crash_and_older_ones_a_fault(stack: Stack, engine: Engine) -> None:
    folder = stack.weights_dir / RUN
    shutil.copytree(folder / "v000003", folder / "v000004")
    (folder / ".v000004.scratch").mkdir()
    result = psrl(stack, "audit", RUN)
    assert result.exit_code == 0, result.output
    assert "1 written, not published" in result.stdout
    damage(engine, WITHOUT_VERSION_1)
    found = broken(stack)
    assert list(found) == ["L9"], found
    assert found["L9"]["bytes without a row are older than the newest version"]["ids"] == ["version 1"]
    assert found["L9"]["published versions have holes"]["ids"] == ["version 1"]


def test_a_step_that_was_cut_off_before_its_publication_is_no_fault(stack: Stack, engine: Engine) -> None:
    """Batch 2 is recorded and the bytes of version 3 are written; the row is not."""
    damage(
        engine,
        "UPDATE segments SET version = 2 WHERE version = 3; DELETE FROM weight_versions WHERE version = 3;"
        "DELETE FROM step_metrics WHERE buffer = 2",
    )
    assert broken(stack) == {}


@pytest.mark.parametrize("phase", ["stopped", "failed"])
def test_what_an_ended_run_left_open_can_be_resumed_and_is_no_fault(stack: Stack, engine: Engine, phase: str) -> None:
    damage(engine, f"UPDATE runs SET phase = '{phase}'")
    assert broken(stack) == {}


def test_files_that_are_not_on_this_machine_are_left_unchecked_and_the_line_says_so(
    stack: Stack, engine: Engine
) -> None:
    shutil.rmtree(stack.weights_dir)
    result = psrl(stack, "audit", RUN)
    assert result.exit_code == 0, result.output
    assert "4 versions published, 4 not checked on disk ... ok" in result.stdout


def test_an_unknown_run_and_a_store_that_is_away_are_no_audit(stack: Stack, engine: Engine) -> None:
    result = psrl(stack, "audit", "kepd")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no run 'kepd' in the store (did you mean 'kept'?); known: kept")
    gone = stack.model_copy(update={"postgres_url": "postgresql+psycopg://psrl@127.0.0.1:9/x"})
    (stack.home / "stack.json").write_text(gone.model_dump_json())
    result = psrl(stack, "audit", RUN)
    assert result.exit_code == 2
    assert "psrl@127.0.0.1:9/x did not answer: connection refused. `psrl up` starts one" in result.stderr


def test_another_run_in_the_same_store_changes_nothing(stack: Stack, engine: Engine) -> None:
    before = psrl(stack, "audit", RUN).stdout
    damage(
        engine,
        "INSERT INTO runs SELECT 'other', workflow_run_id, config, total_steps, prompts, skipped_too_long,"
        " validation_prompts, data_fingerprint, 'done', reason FROM runs;"
        "INSERT INTO groups SELECT 'other', group_id, purpose, epoch, position, row, version_tag, prompt_ids,"
        " prompt_text, data_source, ground_truth, extra, status, '' FROM groups;"
        "INSERT INTO trajectories SELECT 'other', group_id, index, 4, 'failed' FROM trajectories",
    )
    assert psrl(stack, "audit", RUN).stdout == before
    assert psrl(stack, "audit", "other").exit_code == 1
