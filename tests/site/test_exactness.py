"""Whether a file is what this package writes, of files that were damaged."""

from pathlib import Path

import numpy as np
import pytest

from kernfed.federation import SiteStore
from kernfed.files import Record
from kernfed.site.verification import inexact


@pytest.fixture(params=["arrays", "none"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of a store; without arrays its header is all of it."""
    arrays = {"X": np.arange(6.0)} if request.param == "arrays" else {}
    store = SiteStore(tmp_path)
    store.write(Record(arrays, {"name": "value"}), "folder", "file")
    return next((tmp_path / "folder").glob("file*"))


def test_what_is_written_is_exact(place: Path) -> None:
    assert inexact(place) is None


@pytest.mark.parametrize("position", range(8))
@pytest.mark.parametrize("bits", [1, 128, 255])
def test_a_damaged_length_is_named_and_makes_nothing_large(place: Path, position: int, bits: int) -> None:
    """The length of the header may say anything up to 2^64; no file and no memory is as large."""
    content = bytearray(place.read_bytes())
    content[position] ^= bits
    place.write_bytes(content)
    assert inexact(place) is not None
    if position > 1:
        assert f"it has {len(content):,} bytes instead of at least" in str(inexact(place))
