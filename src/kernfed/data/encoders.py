"""Encoders of text, each by name and fingerprint: what sites have alike, without a network.

``words``, the default, comes inside a package (``wordllama``, 16 MB): the mean of its token vectors, and beside it 512
sums over hashed words, which tell names and rare terms that an average forgets. Other encoders are folders on this
machine: static models as ``model2vec`` writes them, and ``sentence-transformers``. A model file names the encoder and
its fingerprint; where it is used the encoder is looked for by that name in the folder ``KERNFED_ENCODERS``, never by a
path from a file or a message.

Images are encoded before learning, by ``kernfed embed``, and never from paths in queries: whoever may ask a model must
not choose which files of a site are opened.
"""

import hashlib
import importlib.util
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.plain import read_json_file
from kernfed.errors import DataError, InputError
from kernfed.files import atomic_path, private_folder

#: The encoder of text where none is named.
USUAL_ENCODER = "words"
#: Folder of encoders by name.
FOLDER = "KERNFED_ENCODERS"
#: Texts at a time, and what of each counts.
BATCH, MOST_CHARACTERS, MOST_TOKENS = 256, 8000, 2048
#: Columns of hashed words, and how many of them each word is in: bits of 16, nine for the column and one for the sign.
HASHED, SPREAD = 512, 8
_WORD = re.compile(r"[^\W_]{2,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NEEDED = "encoding text needs {}: pip install -e '.[text]' in a clone of kernfed"


class Encoder(ABC):
    """From texts to vectors (n, width) of length 1, or 0 for a text that says nothing."""

    name: str
    width: int

    @cached_property
    @abstractmethod
    def digest(self) -> str:
        """Fingerprint of all that decides about vectors."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (n, width) of a few texts."""

    def encode(self, texts: Sequence[str], advance: Callable[[int], Any] = lambda _: None) -> FloatArray:
        """Vectors (n, width); ``advance`` hears how many texts were encoded since."""
        vectors = np.zeros((len(texts), self.width))
        for start in range(0, len(texts), BATCH):
            # Half of a surrogate pair, which no file has but a cut string in memory may, cannot be encoded.
            batch = [
                text[:MOST_CHARACTERS].encode("utf-8", "replace").decode() for text in texts[start : start + BATCH]
            ]
            vectors[start : start + len(batch)] = self.encode_batch(batch)
            advance(len(batch))
        return vectors


class TokenEncoder(Encoder):
    """Means of token vectors, with ``1 + log(count)`` for a token's count; the files of a static model.

    hashed : whether sums over hashed words stand beside them.
    """

    def __init__(self, name: str, tokenizer: Path, weights: Path, *, hashed: bool) -> None:
        self.name, self.hashed = name, hashed
        self._files = (tokenizer, weights)
        self.width = self._vectors.shape[1] + (HASHED if hashed else 0)

    @cached_property
    def _vectors(self) -> npt.NDArray[np.float32]:
        """Token vectors (V, d), times their weights and by token where the file has these apart."""
        from safetensors.numpy import load_file

        arrays = load_file(str(self._files[1]))
        key = next((key for key in ("embeddings", "embedding.weight") if key in arrays), None)
        if key is None or arrays[key].ndim != 2:
            raise InputError(f"{self._files[1]}: expected an array 'embeddings' (V, d), got {sorted(arrays)[:5]}")
        vectors = arrays[key].astype(np.float32)
        if "mapping" in arrays:
            vectors = vectors[arrays["mapping"]]
        return vectors * arrays["weights"].astype(np.float32)[:, None] if "weights" in arrays else vectors

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError(_NEEDED.format("tokenizers")) from None
        tokenizer = Tokenizer.from_file(str(self._files[0]))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MOST_TOKENS)
        return tokenizer

    @cached_property
    def digest(self) -> str:
        """Of both files, and of what is done with them."""
        return fingerprint(f"tokens 1 {self.hashed}", self._files)

    def encode_batch(self, texts: Sequence[str]) -> FloatArray:
        """``sum_t (1 + log n_t) v_t`` over the tokens of each text, brought to length 1; the same over hashed words."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        tokens = _counted([Counter(own.ids) for own in encoded], len(self._vectors))
        parts = [_unit(np.asarray(tokens @ self._vectors, dtype=np.float64))]
        if self.hashed:
            parts.append(_unit(hashed_words(texts)))
        return np.asarray(np.hstack(parts) / np.sqrt(len(parts)))


class SentenceEncoder(Encoder):
    """A folder of ``sentence-transformers``."""

    def __init__(self, name: str, folder: Path) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ImportError(f"{folder} needs sentence-transformers: pip install sentence-transformers") from None
        self.name, self._folder = name, folder
        self._model: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        self.width = int(self._model.get_sentence_embedding_dimension())

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the contents of all files in the encoder's folder."""
        return fingerprint("sentences 1", sorted(path for path in self._folder.rglob("*") if path.is_file()))

    def encode_batch(self, texts: Sequence[str]) -> FloatArray:
        """What the model says, brought to length 1."""
        return _unit(np.asarray(self._model.encode(list(texts), show_progress_bar=False), dtype=np.float64))


def hashed_words(texts: Sequence[str]) -> FloatArray:
    """Sums (n, HASHED) of ``(1 + log n_w) h_w`` over the words of each text.

    ``h_w`` has SPREAD signs at places that the hash of the word decides, so that different words are nearly orthogonal.
    """
    from scipy.sparse import csr_matrix

    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    words = sorted({word for own in counts for word in own})
    place = {word: number for number, word in enumerate(words)}
    digests = b"".join(hashlib.blake2b(word.encode(), digest_size=2 * SPREAD).digest() for word in words)
    bits = np.frombuffer(digests, dtype="<u2").astype(np.int64)
    signs = 1.0 - 2.0 * ((bits >> 9) & 1)
    rows = np.arange(0, len(bits) + 1, SPREAD)
    vectors = csr_matrix((signs, bits % HASHED, rows), shape=(len(words), HASHED))
    used = _counted([Counter({place[word]: count for word, count in own.items()}) for own in counts], len(words))
    return np.asarray((used @ vectors).toarray(), dtype=np.float64)


def find_encoder(name: str) -> Encoder:
    """The encoder of this name: ``words``, or a folder of that name in ``KERNFED_ENCODERS``."""
    if name == USUAL_ENCODER:
        return _words_encoder()
    check_encoder_name(name)
    root = os.environ.get(FOLDER)
    if root is None:
        raise InputError(f"encoder {name!r}: set {FOLDER} to the folder in which the folder {name!r} of it is")
    folder = Path(root) / name
    if not folder.is_dir():
        raise InputError(f"encoder {name!r}: there is no folder {folder}")
    return open_encoder(folder)


def open_encoder(folder: Path) -> Encoder:
    """The encoder in a folder: a static model (``model.safetensors``, ``tokenizer.json``), or sentence-transformers."""
    name = check_encoder_name(folder.resolve().name)
    if (folder / "modules.json").is_file() and not _is_static(folder):
        return SentenceEncoder(name, folder)
    files = folder / "tokenizer.json", folder / "model.safetensors"
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise InputError(
            f"{folder}: expected the files of model2vec (tokenizer.json, model.safetensors) or of "
            f"sentence-transformers (modules.json), there is no {missing[0]}"
        )
    return TokenEncoder(name, *files, hashed=False)


def check_encoder_name(name: str) -> str:
    """A name that is one of a folder and nothing else, or a refusal."""
    if not _NAME.fullmatch(name):
        raise InputError(f"an encoder must be named by letters, digits, dots, - and _, got {name!r:.60}")
    return name


def _is_static(folder: Path) -> bool:
    """Whether a folder that sentence-transformers can read is one of model2vec."""
    try:
        modules = read_json_file(folder / "modules.json")
        return (
            any("StaticEmbedding" in str(module.get("type")) for module in modules)
            and (folder / "tokenizer.json").is_file()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _words_encoder() -> TokenEncoder:
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise ImportError(_NEEDED.format("wordllama"))
    package = Path(next(iter(found.submodule_search_locations)))
    tokenizer = package / "tokenizers" / "l2_supercat_tokenizer_config.json"
    weights = package / "weights" / "l2_supercat_256.safetensors"
    if not (tokenizer.is_file() and weights.is_file()):
        raise ImportError("this version of wordllama has no tokenizer or weights inside: pip install wordllama==0.3.9")
    return TokenEncoder(USUAL_ENCODER, tokenizer, weights, hashed=True)


def _counted(counts: Sequence["Counter[int]"], width: int) -> Any:
    """Sparse ``1 + log(count)`` (n, width), float32."""
    from scipy.sparse import csr_matrix

    ends = np.cumsum([0, *(len(own) for own in counts)])
    places = np.fromiter((key for own in counts for key in sorted(own)), dtype=np.int64, count=ends[-1])
    values = np.fromiter((own[key] for own in counts for key in sorted(own)), dtype=np.float64, count=ends[-1])
    return csr_matrix(((1 + np.log(values)).astype(np.float32), places, ends), shape=(len(counts), width))


def _unit(vectors: FloatArray) -> FloatArray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def fingerprint(kind: str, files: Sequence[Path]) -> str:
    """Short fingerprint of the contents of files, and of what is done with them."""
    whole = hashlib.sha256(kind.encode())
    for content in _contents(files):
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()[:16]


def _contents(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        yield path.read_bytes()


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
        """Fingerprint of the contents of all files in the encoder's folder."""
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
