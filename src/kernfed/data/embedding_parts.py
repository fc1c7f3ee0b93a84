"""Vectors of many texts, kept part by part while they are made, so that whoever was interrupted goes on."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.data.encoders import Encoder
from kernfed.files import atomic_path, private_folder

#: Texts of a part.
PART = 1024


def encode_in_parts(
    encoder: Encoder, texts: Sequence[str], folder: Path, advance: Callable[[int], Any] = lambda _: None
) -> npt.NDArray[np.float32]:
    """Vectors (n, width) of texts; those of parts that ``folder`` has already are read.

    A part is named by the fingerprint of its texts and of the encoder, so that none is taken for another.
    """
    private_folder(folder)
    vectors = np.zeros((len(texts), encoder.width), dtype=np.float32)
    for start in range(0, len(texts), PART):
        part = list(texts[start : start + PART])
        place = folder / f"{_name(encoder, part)}.npy"
        own = _read(place, (len(part), encoder.width))
        if own is None:
            own = encoder.encode(part).astype(np.float32)
            with atomic_path(place, private=True) as temporary, temporary.open("wb") as file:
                np.save(file, own)
        vectors[start : start + len(part)] = own
        advance(len(part))
    return vectors


def remove_parts(folder: Path) -> None:
    """Remove the parts, and the folder where nothing else is in it."""
    for path in folder.glob("*.npy"):
        path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _name(encoder: Encoder, texts: Sequence[str]) -> str:
    whole = hashlib.sha256(encoder.digest.encode())
    for text in texts:
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()[:32]


def _read(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float32] | None:
    """What was kept, or None where it cannot be what is wanted."""
    try:
        kept: npt.NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return kept if kept.shape == shape and kept.dtype == np.float32 and np.isfinite(kept).all() else None
