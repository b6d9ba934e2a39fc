"""docs/coming-from-verl.md, made from the table so that it cannot differ from it. Called by `psrl config docs`."""

from collections.abc import Iterable, Iterator
from typing import Any

from ..config_docs import meanings
from .given import written
from .row import Row, Verdict
from .table import SECTIONS

INTRODUCTION = """# Coming from veRL or PSRL

Made by `psrl config docs --import` from the table in `workers/cli/importing/table/`; a test compares.

```console
$ psrl config import run_grpo.sh --out run.yaml reward.function=my_rewards:score
$ psrl train run.yaml
```

`psrl config import` reads a shell script as it is, a list of `key=value`, a YAML file, or, for `-`, what is pasted. It
writes our YAML with the origin of each value beside it, and prints one line for each of their keys:

| it prints | meaning |
|---|---|
{verdicts}

- **The composed configuration is best.** Hydra writes it to `.hydra/config.yaml` of each run. A script, or a YAML file
  with `defaults`, says only what differs from veRL's defaults; where those differ from ours and change the result, they
  are written too, and marked.
- **A script is read, not run.** Variables that it sets, arithmetic, quotes, arrays and continued lines are followed;
  branches, loops and `$(...)` are not, and it says so. A variable that is set nowhere stays `${{oc.env:NAME}}`, which
  `psrl train` resolves.
- **Overrides** are Hydra's: `key=value`, `+key=value`, `++key=value`, `~key`. Keys of ours behind the file's name win
  over everything, and are written.
- **The clusters of PSRL** are one: `train_actor_rollout_ref` and `gen_actor_rollout_ref` are read as
  `actor_rollout_ref`. Where they disagree about sampling, the generation cluster counts; about anything else, the
  training cluster.
- **Two keys that disagree** about one thing: PSRL's own counts before veRL's, and the other is reported as overruled.
- **Exit status**: 0 if `psrl train` would take the result as it is, 1 if something has to be added, which it names.
- **The reward function has to be named.** veRL has scorers of its own, which it chooses by the data source.
"""


def document() -> str:
    verdicts = "\n".join(f"| {verdict} | {meaning} |" for verdict, meaning in meanings(Verdict))
    parts = [INTRODUCTION.format(verdicts=verdicts)]
    for heading, rows in SECTIONS.items():
        parts.append(f"\n## {heading}\n\n| theirs | what becomes of it | |\n|---|---|---|")
        parts += [_row(row) for row in rows]
    return "\n".join(parts) + "\n"


def _row(row: Row) -> str:
    cells = [f"`{row.key}`", _verdict(row), "; ".join(_said(row))]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdict(row: Row) -> str:
    if row.switch is None or row.switch.key != row.key or not row.switch.off:
        return str(row.verdict)
    return f"{row.verdict}, except {_either(row.switch.off)}"


def _said(row: Row) -> Iterator[str]:
    if row.verdict is Verdict.RENAMED:
        yield ", ".join(f"`{key}`" for key in row.targets)
    if row.why:
        yield row.why
    if row.weak:
        yield "where no other key says it"
    if row.switch is not None and row.switch.key != row.key:
        where = f" is {_either(row.switch.on)}" if row.switch.on else ""
        yield f"counts only {'where' if where else 'with'} `{row.switch.key}`{where}"


def _either(values: Iterable[Any]) -> str:
    return " or ".join(f"`{written(value)}`" for value in values)
