"""The record of what left each site."""

import json
from pathlib import Path

import pytest

from kernfed.site.protocol.traffic import INFORMATION, Traffic


def some() -> Traffic:
    traffic = Traffic()
    traffic.add("b", "scores", "scores", down=10, up=20, scalars=3)
    traffic.add("a", "scores", "none", down=1, up=2, scalars=0)
    traffic.add("b", "describe", "schema", down=5, up=6, scalars=0)
    traffic.add("b", "scores", "none", down=100, up=200, scalars=4)
    return traffic


def test_entries_add_up_in_order_of_names() -> None:
    traffic = some()
    assert [(e.site, e.task, e.messages, e.bytes_down, e.bytes_up, e.scalars_up) for e in traffic] == [
        ("a", "scores", 1, 1, 2, 0),
        ("b", "describe", 1, 5, 6, 0),
        ("b", "scores", 2, 110, 220, 7),
    ]
    assert (len(traffic), traffic.bytes_down, traffic.bytes_up) == (3, 116, 228)


@pytest.mark.parametrize("first", INFORMATION)
@pytest.mark.parametrize("second", INFORMATION)
def test_the_most_telling_kind_counts(first: str, second: str) -> None:
    traffic = Traffic()
    traffic.add("a", "t", first, down=0, up=0, scalars=0)
    traffic.add("a", "t", second, down=0, up=0, scalars=0)
    assert INFORMATION.index(next(iter(traffic)).information) == max(map(INFORMATION.index, (first, second)))


def test_what_is_not_declared_counts_as_rows() -> None:
    traffic = Traffic()
    traffic.add("a", "t", "harmless", down=0, up=9, scalars=1)
    assert next(iter(traffic)).information == "rows"


def test_table_and_json(tmp_path: Path) -> None:
    traffic = some()
    lines = str(traffic).splitlines()
    assert lines[0].split() == [
        "site",
        "task",
        "information",
        "messages",
        "bytes",
        "down",
        "bytes",
        "up",
        "numbers",
        "up",
    ]
    assert lines[3].split() == ["b", "scores", "scores", "2", "110", "220", "7"]
    assert lines[-1].split() == ["total", "4", "116", "228", "7"]
    assert len(lines) == 5
    traffic.save(tmp_path / "traffic.json")
    assert json.loads((tmp_path / "traffic.json").read_text()) == traffic.to_json()
    assert traffic.to_json()[2]["bytes_up"] == 220
    assert str(Traffic()).splitlines()[-1].split() == ["total", "0", "0", "0", "0"]
