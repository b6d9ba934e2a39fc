"""Files that tools write for people."""

from pathlib import Path


def write_whole(text: str, file: Path) -> None:
    """As a whole or not at all; into what is no file, such as /dev/stdout, as it is: it must not be replaced by one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    written = file.with_name(file.name + ".new")
    written.write_text(text, encoding="utf-8")
    written.replace(file)
