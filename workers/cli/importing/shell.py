"""The words of a shell script, as far as they can be known without running it. Called by `reading.py`.

Variables are replaced as a shell would: by what the script has set by then, else by the environment, else by the
default that is written with them. A variable that nobody sets stays `${oc.env:NAME}`, which `psrl train` resolves. What
only a running shell knows (`$(…)`, `$1`, `${name%…}`) makes the word *hidden*. Quotes, comments, continued lines,
arithmetic and here-documents are read; branches and loops are not followed, only noticed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ....schemas.errors import ConfigError
from .arithmetic import NotANumber, evaluate

PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9@*]")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
BRACED = re.compile(r"(?P<name>[A-Za-z_]\w*|[0-9@*])(?::?(?P<kind>[-=?])(?P<default>.*))?", re.DOTALL)
CONTINUED = re.compile(r"\\[ \t]*\n")
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
FLOW = frozenset(("if", "elif", "else", "for", "while", "until", "case", "function"))
BEFORE_A_COMMAND = frozenset(("export", "local", "declare", "readonly", "then", "else", "do", "time", "!", "{"))
MAX_WORD = 1_000_000
"""Characters. A variable may hold itself ten times over, again and again."""
ENDS_WORD = frozenset(" \t\n;&|<>()")


class Word(NamedTuple):
    text: str
    line: int
    hidden: str = ""


class Script:
    """One reading of one script. `keys`: names without a dot that are keys, though they look like variables."""

    def __init__(self, text: str, environment: Mapping[str, str], keys: frozenset[str] = frozenset()) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._environment = environment
        self._keys = keys
        self._set: dict[str, Word] = {}
        self.flow_line = 0
        """The first line with a branch or a loop."""

    def words(self) -> Iterator[Word]:
        """All but assignments, which are kept for what follows them."""
        first = True
        while word := self._word():
            if word.text == "\n":
                first = True
            elif first and (assigned := ASSIGNMENT.match(word.text)) and assigned[1] not in self._keys:
                self._set[assigned[1]] = word._replace(text=word.text[assigned.end() :])
            else:
                if first and word.text in FLOW:
                    self.flow_line = self.flow_line or word.line
                first = first and word.text in BEFORE_A_COMMAND
                yield word

    def _word(self) -> Word | None:
        """The next word; a line end or an operator is the word `\\n`; None at the end."""
        self._skip_blanks()
        line = self._line()
        if self._at >= len(self._text):
            return None
        if self._text[self._at] in ENDS_WORD:
            self._skip_operator()
            return Word("\n", line)
        parts: list[str] = []
        hidden = ""
        depth = 0
        while self._at < len(self._text):
            char = self._text[self._at]
            within_a_list = depth > 0 and "=" in "".join(parts)
            if char in ENDS_WORD and not (within_a_list and char in " \t"):
                break
            depth += (char in "[{") - (char in "]}")
            text, why = self._piece(char)
            parts.append(text)
            hidden = hidden or why
        if (length := sum(map(len, parts))) > MAX_WORD:
            raise ConfigError(f"line {line}: a word of {length} characters; allowed: at most {MAX_WORD}")
        return Word("".join(parts), line, hidden)

    def _piece(self, char: str) -> tuple[str, str]:
        """A character, or what stands in quotes or behind a dollar; and why it is hidden."""
        if char == "'":
            return self._until("'"), ""
        if char == '"':
            return self._double_quoted()
        if char in "$`":
            return self._expansion()
        if char == "\\":
            continued = CONTINUED.match(self._text, self._at)
            self._at = continued.end() if continued else self._at + 2
            return ("" if continued else self._text[self._at - 1 : self._at]), ""
        self._at += 1
        return char, ""

    def _double_quoted(self) -> tuple[str, str]:
        begun = self._line()
        self._at += 1
        parts: list[str] = []
        hidden = ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return "".join(parts), hidden
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = self._text[self._at + 1]
                parts.append("" if escaped == "\n" else escaped)
                self._at += 2
            elif char in "$`":
                text, why = self._expansion()
                parts.append(text)
                hidden = hidden or why
            else:
                parts.append(char)
                self._at += 1
        raise ConfigError(f"line {begun}: a double quote is never closed")

    def _expansion(self) -> tuple[str, str]:
        text, at = self._text, self._at
        if text.startswith("$((", at):
            return self._arithmetic(self._balanced(at + 1, "()"))
        if text.startswith("$(", at):
            return "", f"$({self._balanced(at + 1, '()')})"
        if text.startswith("${", at):
            return self._braced(self._balanced(at + 1, "{}"))
        if text[at] == "`":
            return "", f"`{self._until('`')}`"
        name = PARAMETER.match(text, at + 1)
        self._at = name.end() if name else at + 1
        return self._variable(name[0]) if name else ("$", "")

    def _braced(self, inside: str) -> tuple[str, str]:
        found = BRACED.fullmatch(inside)
        if found is None:
            # `${section.key}` and `${oc.env:NAME}` are OmegaConf's.
            return f"${{{inside}}}", "" if re.match(r"[A-Za-z_]\w*[.:]", inside) else f"${{{inside}}}"
        name = found["name"]
        known = self._set.get(name, Word(self._environment.get(name, ""), 0))
        if found["kind"] not in ("-", "=") or known.text or known.hidden:
            return self._variable(name)
        inner = Script(found["default"], self._environment)
        inner._set = self._set
        return inner._rest()

    def _rest(self) -> tuple[str, str]:
        """All of the text as one word."""
        parts: list[str] = []
        hidden = ""
        while self._at < len(self._text):
            text, why = self._piece(self._text[self._at])
            parts.append(text)
            hidden = hidden or why
        return "".join(parts), hidden

    def _variable(self, name: str) -> tuple[str, str]:
        if name in "@*":
            return "", ""  # what the script is called with: nothing
        if found := self._set.get(name):
            return found.text, found.hidden
        if name in self._environment:
            return self._environment[name], ""
        if name.isdigit():
            return "", f"${name}"
        return (f"${{oc.env:{name}}}", "") if name.isupper() else ("", f"${name}, which nobody sets")

    def _arithmetic(self, inside: str) -> tuple[str, str]:
        expression = inside[1:-1]  # of the inner pair of parentheses
        try:
            return str(evaluate(expression, lambda name: self._variable(name)[0])), ""
        except NotANumber:
            return "", f"$(({expression}))"

    def _balanced(self, at: int, pair: str) -> str:
        """What is inside the pair that opens at `at`; reading goes on behind it."""
        depth = 0
        for index in range(at, len(self._text)):
            depth += (self._text[index] == pair[0]) - (self._text[index] == pair[1])
            if depth == 0:
                self._at = index + 1
                return self._text[at + 1 : index]
        raise ConfigError(f"line {self._line()}: {self._text[at - 1 : at + 1]} is never closed")

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise ConfigError(f"line {self._line()}: {quote} is never closed")
        inside = self._text[self._at + 1 : end]
        self._at = end + 1
        return inside

    def _skip_blanks(self) -> None:
        """Blanks, continued lines and comments."""
        while self._at < len(self._text):
            if continued := CONTINUED.match(self._text, self._at):
                self._at = continued.end()
            elif self._text[self._at] in " \t":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = end if end >= 0 else len(self._text)
            else:
                return

    def _skip_operator(self) -> None:
        here = HEREDOC.match(self._text, self._at)
        if here is None:
            self._at += 1
            return
        ends = re.compile(rf"^\s*{here[2]}$", re.MULTILINE).search(self._text, here.end())
        self._at = ends.end() if ends else len(self._text)

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
