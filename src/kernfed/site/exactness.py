"""Whether a file is byte for byte what this package writes: a changed byte that changes no meaning is noticed, too.

Checksums are of what a file says. JSON says the same with other blanks, or with other letters in the number of a
character; so the text of a file is held against the text that its own content makes.
"""

import json
from pathlib import Path
from typing import Any

from kernfed.base.plain import read_json, read_json_file


def inexact(place: Path) -> str | None:
    """What is wrong with a file of the store or of a model, in words; None where nothing is."""
    try:
        if place.suffix == ".json":
            return _unlike(place.read_text(encoding="utf-8"), read_json_file(place), True)
        return _inexact_arrays(place.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read: {str(error)[:100]}"


def _inexact_arrays(content: bytes) -> str | None:
    """A file of arrays: eight bytes of length, a header in JSON filled up with blanks, and the arrays end to end."""
    size = int.from_bytes(content[:8], "little")
    if 8 + size > len(content):  # before as many blanks are made as a damaged length says
        return f"it has {len(content):,} bytes instead of at least {8 + size:,}"
    text = content[8 : 8 + size].decode()
    header = read_json(text)
    if text != json.dumps(header, separators=(",", ":"), ensure_ascii=False).ljust(size):
        return "its header is not what it was written as"
    about = header.pop("__metadata__", {})
    ends = [0]
    for begin, end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != ends[-1]:
            return "its arrays do not follow each other"
        ends.append(end)
    if len(content) != 8 + size + ends[-1]:
        return f"it has {len(content):,} bytes instead of {8 + size + ends[-1]:,}"
    said = about.get("kernfed", about.get("values", "{}"))  # of a model, or of a record in a store
    if str(int(about.get("checksum", "0"))) != about.get("checksum", "0"):
        return "its checksum is not written as a number is"
    return _unlike(said, read_json(said), "kernfed" in about)


def _unlike(text: str, said: Any, ordered: bool) -> str | None:
    return None if text == json.dumps(said, sort_keys=ordered) else "its text is not what its content is written as"
