"""Text from outside: stored as it is where that is possible, never a reason to fail where it is not."""

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.text import MAX_CAUSES, described, first_line, named, shown, storable, with_causes


@given(st.text(st.characters()), st.integers(0, 40))
def test_any_text_becomes_storable_and_short(text: str, limit: int) -> None:
    stored = storable(text, limit)
    assert "\0" not in stored
    assert stored.encode("utf-8").decode("utf-8") == stored
    assert len(stored) <= limit


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_what_can_be_stored_stays_as_it_is(text: str) -> None:
    assert storable(text, 40) == text
    assert storable(storable(text, 40), 40) == text


def test_what_cannot_be_stored_can_still_be_read() -> None:
    assert storable("a\0b\udc80c", 40) == r"a\x00b\udc80c"


def test_the_first_line_of_nothing_is_empty() -> None:
    assert [first_line(text) for text in ("", "\n\n", "one\ntwo", "\n one")] == ["", "", "one", "one"]


def test_an_exception_without_a_text_has_an_empty_one() -> None:
    assert described(ValueError()) == ""


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise ValueError("none")


def test_what_cannot_say_what_it_is_is_described_all_the_same() -> None:
    assert described(Speechless()) == "its text raises KeyboardInterrupt"
    assert named(Speechless()) == "Speechless: its text raises KeyboardInterrupt"
    assert shown(Speechless()) == "a Speechless whose repr raises ValueError"


def test_several_errors_are_told_by_the_first() -> None:
    inner = ExceptionGroup("inner", [ValueError("reason\nmore")])
    assert named(ExceptionGroup("outer", [inner, KeyError()])) == (
        "ExceptionGroup: outer (2 sub-exceptions): ExceptionGroup: inner (1 sub-exception): ValueError: reason"
    )


def test_causes_are_told_one_a_line_and_a_circle_of_them_ends() -> None:
    first, second = ValueError("first\nin two lines"), RuntimeError("second\nin two lines")
    first.__cause__, second.__cause__ = second, first
    assert with_causes(second) == "second\nin two lines\nbecause of ValueError: first"
    long = ValueError("0")
    for number in range(1, 20):
        outer = ValueError(str(number))
        outer.__cause__, long = long, outer
    assert len(with_causes(long).splitlines()) == 1 + MAX_CAUSES
