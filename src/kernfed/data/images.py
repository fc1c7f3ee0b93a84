"""Encoders of images: a folder of ``timm`` on this machine, without a network.

Images are encoded before learning, by ``kernfed embed``, and never from paths in queries: whoever may ask a model must
not choose which files of a site are opened.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.data.encoders import Encoder, check_encoder_name, fingerprint
from kernfed.errors import DataError


class ImageEncoder(Encoder):
    """A model of ``timm`` in a folder (``config.json``, ``model.safetensors``); its texts are paths of images."""

    def __init__(self, folder: Path, root: Path) -> None:
        try:
            import timm
            import torch
        except ImportError:
            raise ImportError("encoding images needs timm: pip install -e '.[images]' in a clone of kernfed") from None
        self.name, self._folder, self._root, self._torch = (
            check_encoder_name(folder.resolve().name),
            folder,
            root,
            torch,
        )
        self._model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
        config = timm.data.resolve_model_data_config(self._model)
        self._transform: Any = timm.data.create_transform(**config, is_training=False)
        self.width = int(self._model.num_features)

    @cached_property
    def digest(self) -> str:
        """Of all files of the folder."""
        return fingerprint("timm 1", sorted(path for path in self._folder.rglob("*") if path.is_file()))

    def encode_batch(self, texts: Sequence[str]) -> FloatArray:
        """Features (n, width) of images before the last layer."""
        from PIL import Image

        pictures = []
        for text in texts:
            try:
                with Image.open(self._root / text) as image:
                    pictures.append(self._transform(image.convert("RGB")))
            except OSError as error:
                raise DataError(f"{self._root / text}: no image can be read: {error}") from None
        with self._torch.inference_mode():
            return np.asarray(self._model(self._torch.stack(pictures)).numpy(), dtype=np.float64)
