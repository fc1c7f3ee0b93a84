"""Shows docstrings on the reference page as they are meant: examples as code, parameters as a list."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", flags=re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"^(\w[\w.,/ *]*?) : (?=\S)", flags=re.MULTILINE)


class ReadableDocstrings(griffe.Extension):
    """Puts a fence around examples and a bullet before ``name : description``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is not None:
            text = _PARAMETER.sub(r"\n- `\1`: ", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(lambda example: f"```python\n{example.group()}\n```", text)
