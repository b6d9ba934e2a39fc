"""Shell scripts as people paste them, read without being run."""

import pytest

from psrl.schemas.errors import ConfigError
from psrl.workers.cli.importing.arithmetic import NotANumber, evaluate
from psrl.workers.cli.importing.shell import Script, Word

ENVIRONMENT = {"HOME": "/home/me", "NNODES": "4", "EMPTY": ""}


def words(text: str) -> list[str]:
    return [word.text for word in Script(text, ENVIRONMENT).words()]


def last(text: str) -> Word:
    return list(Script(text, ENVIRONMENT).words())[-1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run a.b=1 c.d=2", ["run", "a.b=1", "c.d=2"]),
        ("run \\\n    a.b=1 \\\n  c.d=2", ["run", "a.b=1", "c.d=2"]),
        ("run \\  \n a.b=1", ["run", "a.b=1"]),
        ("run a.b=1 \\\n \\\n c.d=2\n", ["run", "a.b=1", "c.d=2"]),
        ("run \\\r\n  a.b=1\r\n", ["run", "a.b=1"]),
        ("run a.b='x y' c=\"it's\"", ["run", "a.b=x y", "c=it's"]),
        ("run a.b=['console','wandb']", ["run", "a.b=[console,wandb]"]),
        ("run a.b=['console', 'wandb'] c.d=1", ["run", "a.b=[console, wandb]", "c.d=1"]),
        ('run a.b=\'["x","y"]\'', ["run", 'a.b=["x","y"]']),
        ("# it's off: a.b=1\nrun a.b=2 # \"no", ["run", "a.b=2"]),
        ("run a.b=x#1", ["run", "a.b=x#1"]),
        ("A=1; B=2 run a.b=$A$B", ["run", "a.b=12"]),
        ("export A=1 && run a.b=$A | tee log", ["export", "run", "a.b=1", "tee", "log"]),
        ("run a.b=1 2>&1 > log", ["run", "a.b=1", "2", "1", "log"]),
        (
            'ARGS=(\n  a.b=1  # one\n  c.d=2\n)\nrun "${ARGS[@]}" e.f=3',
            ["a.b=1", "c.d=2", "run", "${ARGS[@]}", "e.f=3"],
        ),
        ("cat <<'EOF'\na.b=1 it's\nEOF\nrun c.d=2", ["cat", "run", "c.d=2"]),
        ("run a.b=1 $@", ["run", "a.b=1", ""]),
        ('run a.b="x\\"y" c.d=\\$x', ["run", 'a.b=x"y', "c.d=$x"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, found: list[str]) -> None:
    assert words(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x=$HOME/data", "/home/me/data"),
        ("x='$HOME'", "$HOME"),
        ('x="${HOME}"', "/home/me"),
        ("x=${NNODES:-16}", "4"),
        ("x=${NOBODY:-16}", "16"),
        ("x=${EMPTY:-16}", "16"),
        ('x=${NOBODY:-"${HOME}/verl"}', "/home/me/verl"),
        ("x=${1:-3}", "3"),
        ("x=$((1024 * 2))", "2048"),
        ("x=$(( (NNODES + 2) / (4 * 1) ))", "1"),
        ("x=$((${NNODES} - 5))", "-1"),
        ("x=$DATA_ROOT/t.parquet", "${oc.env:DATA_ROOT}/t.parquet"),
        ("x=${DATA_ROOT:?not set}/t", "${oc.env:DATA_ROOT}/t"),
        ("x=${psrl.staleness}", "${psrl.staleness}"),
        ("x=${oc.env:HOME}", "${oc.env:HOME}"),
        ("x=5$", "5$"),
    ],
)
def test_variables_are_what_a_shell_would_put_there(text: str, found: str) -> None:
    assert last(f"run {text}") == Word(f"x={found}", 1)


def test_a_variable_is_what_the_script_has_set_by_then() -> None:
    assert words("N=2\nrun a.b=$N\nN=3\nM=${N}0\nrun a.b=$M") == ["run", "a.b=2", "run", "a.b=30"]
    assert words('HOME=/other\nF="[\'$HOME/t\']"\nrun a.b="$F"') == ["run", "a.b=['/other/t']"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x=$(nproc)", "$(nproc)"),
        ("x=`nproc`", "`nproc`"),
        ("x=$2", "$2"),
        ("x=${NAME%.sh}", "${NAME%.sh}"),
        ("x=$unset_here", "$unset_here, which nobody sets"),
        ("x=$((NNODES ** 2))", "$((NNODES ** 2))"),
        ("x=$((1 / 0))", "$((1 / 0))"),
        ('x="$(python -c "print(1)")/y"', '$(python -c "print(1)")'),
    ],
)
def test_what_only_a_running_shell_knows_is_hidden(text: str, why: str) -> None:
    assert last(f"run {text}").hidden == why
    assert last(f"V={text.removeprefix('x=')}\nrun y=$V").hidden == why


def test_branches_are_noticed_and_what_they_set_is_read() -> None:
    script = Script('N=1\nif [[ ! -f "$X" ]]; then\n  N=2\nfi\nrun a.b=$N', ENVIRONMENT)
    assert [word.text for word in script.words()][-1] == "a.b=2"
    assert script.flow_line == 2
    assert Script("run if.x=1", ENVIRONMENT).flow_line == 0


def test_a_key_that_looks_like_a_variable_is_a_key() -> None:
    assert [word.text for word in Script("model_engine=dp", {}, frozenset(("model_engine",))).words()] == [
        "model_engine=dp"
    ]
    assert words("model_engine=dp") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run\nrun a.b='x", "line 2: ' is never closed"),
        ('run a.b="x\n\n', "line 1: a double quote is never closed"),
        ("run a.b=${X", "line 1: ${ is never closed"),
        ("run a.b=$(x", "line 1: $( is never closed"),
    ],
)
def test_a_quote_that_is_never_closed_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        words(text)
    assert str(caught.value) == said


@pytest.mark.parametrize("expression", ["a.b", "f()", "1 +", "2 ** 9", "x", "1 // 2"])
def test_arithmetic_is_four_operations_on_whole_numbers(expression: str) -> None:
    with pytest.raises(NotANumber):
        evaluate(expression, lambda name: "not a number")
    assert evaluate("-7 / 2", lambda name: "") == -3
