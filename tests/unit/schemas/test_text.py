"""Text from outside: stored as it is where that is possible, never a reason to fail where it is not."""

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.text import described, first_line, storable


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
