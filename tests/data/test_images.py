"""Images by a folder of timm: only what is read and refused here, for timm itself is an extra."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kernfed.data.encoders import ImageEncoder
from kernfed.errors import DataError

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder of a model, and a timm whose models give the mean colour."""
    asked = []

    class Model(torch.nn.Module):
        num_features = 3

        def forward(self, batch):
            return batch.mean(dim=(2, 3))

    def create_model(name, **options):
        asked.append((name, options))
        return Model()

    def transform(image):
        return torch.tensor(np.asarray(image.resize((4, 4)), dtype=np.float32).transpose(2, 0, 1) / 255)

    data = SimpleNamespace(resolve_model_data_config=lambda _: {}, create_transform=lambda **_: transform)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model, data=data))
    folder = tmp_path / "colours"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    Image.new("RGB", (8, 6), (255, 0, 0)).save(tmp_path / "red.png")
    Image.new("L", (8, 6), 255).save(tmp_path / "white.png")
    return folder, asked


def test_images_become_features_of_the_model_in_the_folder(models, tmp_path):
    folder, asked = models
    encoder = ImageEncoder(folder, tmp_path)
    assert asked == [(f"local-dir:{folder}", {"pretrained": True, "num_classes": 0})]
    np.testing.assert_allclose(encoder.encode(["red.png", "white.png"]), [[1, 0, 0], [1, 1, 1]])
    first = encoder.digest
    (folder / "config.json").write_text("{ }")
    assert ImageEncoder(folder, tmp_path).digest != first


def test_what_is_no_image_is_named(models, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    encoder = ImageEncoder(models[0], tmp_path)
    for name in ("text.png", "absent.png"):
        with pytest.raises(DataError, match=f"{name}: no image can be read"):
            encoder.encode([name])


def test_without_timm_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"\[images\]"):
        ImageEncoder(tmp_path, tmp_path)
