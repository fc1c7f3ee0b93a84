"""Encoders of text: the same vectors everywhere, by name and fingerprint, without a network."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import save_file

from kernfed.data import Preparation, Rules
from kernfed.data.encoders import (
    FOLDER,
    HASHED,
    PART,
    SPREAD,
    encode_in_parts,
    find_encoder,
    hashed_words,
    open_encoder,
    remove_parts,
)
from kernfed.data.preparation_plans import TEXT
from kernfed.errors import InputError

tokenizers = pytest.importorskip("tokenizers")
WORDS = ["red", "green", "blue", "cat", "dog"]


def made_model(folder, seed=0, **more):
    """A static model of five words, as model2vec writes one."""
    folder.mkdir(exist_ok=True)
    known = {word: place for place, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    vectors = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
    save_file({"embeddings": vectors, **more}, folder / "model.safetensors")
    return vectors


@pytest.fixture
def encoders(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    made_model(tmp_path / "tiny")
    return tmp_path


def test_vectors_are_those_of_the_tokens(encoders):
    vectors = made_model(encoders / "tiny").astype(float)
    expected = (1 + np.log(2)) * vectors[1] + vectors[4]
    encoder = find_encoder("tiny")
    np.testing.assert_allclose(encoder.encode(["red cat red"])[0], expected / np.linalg.norm(expected), rtol=1e-5)
    assert (encoder.encode([""]) == 0).all()
    assert (encoder.encode(["red cat red", "\ud83d"])[0] == encoder.encode(["red cat red"])[0]).all()  # a cut emoji
    texts = [f"{a} {b}" for a in WORDS for b in WORDS] * 30
    whole = encoder.encode(texts)
    assert (encoder.encode(texts[300:310]) == whole[300:310]).all()  # whatever they are encoded with


def test_weights_and_places_of_tokens(encoders):
    weights, mapping = np.arange(6, dtype=np.float32), np.arange(6)[::-1].copy()
    vectors = made_model(encoders / "tiny", weights=weights, mapping=mapping)
    own = 2 * vectors[mapping[2]].astype(float)
    np.testing.assert_allclose(find_encoder("tiny").encode(["green"])[0], own / np.linalg.norm(own), rtol=1e-5)


def test_hashed_words_are_nearly_orthogonal_and_forget_order_and_case():
    texts = [f"word{number}" for number in range(200)]
    vectors = hashed_words(texts)
    assert vectors.shape == (200, HASHED)
    products = vectors @ vectors.T / SPREAD
    assert np.abs(products[~np.eye(200, dtype=bool)]).mean() < 0.1
    assert (hashed_words(["One two"]) == hashed_words(["two, ONE!"])).all()
    doubled = hashed_words(["one one two"]) - hashed_words(["one two"])
    np.testing.assert_allclose(doubled, np.log(2) * hashed_words(["one"]), atol=1e-6)


def test_the_fingerprint_is_of_what_decides(encoders):
    first = find_encoder("tiny").digest
    made_model(encoders / "copy")
    assert open_encoder(encoders / "copy").digest == first
    made_model(encoders / "tiny", seed=1)
    assert find_encoder("tiny").digest != first


def test_text_is_prepared_and_the_encoder_must_be_the_same(encoders):
    table = {"note": ["red cat", "green dog", None, "red cat"] * 5, "age": list(range(20))}
    preparation = Preparation.fit(table, rules=Rules(texts={"note": "tiny"}))
    assert preparation.columns == ("note[0]", "note[1]", "note[2]", "note[3]")  # ages count the rows
    X, _ = preparation.apply({"note": ["red cat", None, "blue"]})
    np.testing.assert_allclose(X[0], TEXT * find_encoder("tiny").encode(["red cat"])[0])
    assert (X[1] == 0).all()
    again = Preparation.from_values(preparation.to_values())
    assert again == preparation
    preparation.save(encoders / "p.toml")
    assert Preparation.load(encoders / "p.toml") == preparation
    made_model(encoders / "tiny", seed=1)
    with pytest.raises(InputError, match="another one here"):
        preparation.apply({"note": ["red"]})


@pytest.mark.usefixtures("encoders")
@pytest.mark.parametrize("name", ["../tiny", "/etc", "a/b", "", ".hidden", "x" * 200])
def test_a_name_is_never_a_path(name):
    with pytest.raises(InputError, match="must be named by letters"):
        find_encoder(name)
    values = Preparation.fit({"note": ["red"] * 20, "n": [1, 2] * 10}, rules=Rules(texts={"note": "tiny"})).to_values()
    with pytest.raises(InputError, match="must be named by letters"):
        Preparation.from_values([{**values[0], "encoder": name}])


def test_what_is_no_encoder_is_one_sentence(encoders, monkeypatch):
    (encoders / "empty").mkdir()
    with pytest.raises(InputError, match=r"there is no tokenizer\.json"):
        find_encoder("empty")
    with pytest.raises(InputError, match="there is no folder"):
        find_encoder("absent")
    save_file({"other": np.zeros(2)}, encoders / "tiny" / "model.safetensors")
    with pytest.raises(InputError, match="expected an array 'embeddings'"):
        find_encoder("tiny")
    monkeypatch.delenv(FOLDER)
    with pytest.raises(InputError, match="set KERNFED_ENCODERS"):
        find_encoder("tiny")


def test_a_folder_of_sentence_transformers_is_read_by_it(encoders, monkeypatch):
    calls = []

    class Transformer:
        def __init__(self, folder, **options):
            calls.append((folder, options))

        def get_sentence_embedding_dimension(self):
            return 2

        def encode(self, texts, **_):
            return np.array([[3.0, 4.0]] * len(texts))

    module = type("module", (), {"SentenceTransformer": Transformer})
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    folder = encoders / "sentences"
    folder.mkdir()
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer"}]))
    np.testing.assert_allclose(find_encoder("sentences").encode(["a", "b"]), [[0.6, 0.8]] * 2)
    assert calls == [(str(folder), {"device": "cpu", "local_files_only": True})]


def test_whoever_was_interrupted_goes_on(encoders, tmp_path):
    encoder, texts = find_encoder("tiny"), [f"{WORDS[n % 5]} {WORDS[n % 3]}" for n in range(PART + 10)]
    seen = []

    class Breaking(type(encoder)):
        def encode_batch(self, batch):
            seen.append(len(batch))
            if sum(seen) > PART:
                raise KeyboardInterrupt
            return super().encode_batch(batch)

    breaking = Breaking(
        "tiny", encoders / "tiny" / "tokenizer.json", encoders / "tiny" / "model.safetensors", hashed=False
    )
    with pytest.raises(KeyboardInterrupt):
        encode_in_parts(breaking, texts, tmp_path / "parts")
    advanced = []
    seen[:] = [0]
    vectors = encode_in_parts(breaking, texts, tmp_path / "parts", advanced.append)
    assert seen == [0, 10]  # the first part was kept
    assert advanced == [PART, 10]
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-6)
    (next((tmp_path / "parts").glob("*.npy"))).write_bytes(b"broken")
    np.testing.assert_allclose(encode_in_parts(encoder, texts, tmp_path / "parts"), vectors)
    remove_parts(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


@pytest.mark.skipif(find_spec("wordllama") is None, reason="needs the extra text")
def test_the_usual_encoder_comes_inside_a_package():
    encoder = find_encoder("words")
    near = encoder.encode(["The patient has a fever", "A fever of the patient", "Ice hockey scores of tonight"])
    assert near.shape == (3, 768)
    products = near @ near.T
    assert products[0, 1] > products[0, 2] + 0.2
