"""What the documents say is true: examples run, links lead somewhere, the project speaks of itself only."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_documents_run(path):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = "\n".join(block for block in blocks if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(text, {}, str(path.relative_to(ROOT)), None, 0)
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def test_readme_opens_with_the_two_commands():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    block = lines[: lines.index("```", 3)]
    assert block[2] == "```"
    assert block[3].startswith("make demo")
    assert block[4].startswith("make test")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_local_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


def test_commands_named_in_the_readme_exist():
    from kernfed.cli import app

    known = {command.name for command in app.registered_commands} | {
        group.name or group.typer_instance.info.name for group in app.registered_groups
    }
    for name in re.findall(r"^kernfed +(\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE):
        assert name in known
