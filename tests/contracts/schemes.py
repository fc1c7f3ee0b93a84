"""What every scheme must do: one suite, run for each of them.

A subclass names the scheme and gives ``holder(n_sites, n_classes, bits)``, which may keep keys between tests.
"""

import json
from abc import ABC, abstractmethod

import numpy as np
import pytest

from kernfed.errors import ProtocolError
from kernfed.secure import KeyHolder, Server, Site, classify, read_header
from kernfed.secure.message import pack, unpack
from oracles.secure import attaining_sets, scores_with_ties


def roles(holder: KeyHolder) -> tuple[list[Site], Server]:
    """Sites and server, which get bytes only."""
    key = holder.site_key
    return [Site(key, q) for q in range(holder.setting.n_sites)], Server(holder.evaluation_keys)


def with_header(message: bytes, **changes: object) -> bytes:
    """The same message with other words in its header."""
    header, offset = read_header(message)
    named = {**header.__dict__, **changes}
    text = json.dumps(named).encode()
    return message[:4] + len(text).to_bytes(4, "little") + text + message[offset:]


class SchemeContract(ABC):
    """Correctness, robustness to missing sites, and refusals."""

    scheme: str
    settings: tuple[tuple[int, int, int], ...] = ((1, 3, 8), (2, 1, 8), (2, 3, 8), (2, 4, 16))
    queries = 40
    counts: tuple[int, ...] = (1, 31, 32, 33, 70)

    @abstractmethod
    def holder(self, n_sites: int, n_classes: int, bits: int) -> KeyHolder:
        """Keys, perhaps made before."""

    @pytest.fixture
    def small(self) -> KeyHolder:
        return self.holder(2, 3, 8)

    def test_sets_equal_the_oracle_ties_included(self, rng: np.random.Generator) -> None:
        for n_sites, n_classes, bits in self.settings:
            holder = self.holder(n_sites, n_classes, bits)
            sites, server = roles(holder)
            scores = scores_with_ties(rng, n_sites, self.queries, n_classes, bits)
            expected = attaining_sets(scores, bits)
            answer = server.combine([site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)])
            np.testing.assert_array_equal(holder.attaining(answer), expected)
            np.testing.assert_array_equal(holder.decide(answer), expected.argmax(axis=1))
            assert n_classes == 1 or (expected.sum(axis=1) > 1).any()  # the inputs do test ties

    def test_order_of_messages_and_missing_sites(self, small: KeyHolder, rng: np.random.Generator) -> None:
        sites, server = roles(small)
        scores = scores_with_ties(rng, 2, self.queries // 2, 3)
        messages = [site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)]
        both = small.attaining(server.combine(messages))
        np.testing.assert_array_equal(small.attaining(server.combine(messages[::-1])), both)
        for q in (0, 1):
            alone = small.attaining(server.combine([messages[q]]))
            np.testing.assert_array_equal(alone, attaining_sets(scores[q : q + 1], 8))

    def test_any_number_of_queries(self, small: KeyHolder, rng: np.random.Generator) -> None:
        sites, server = roles(small)
        for n in self.counts:
            scores = scores_with_ties(rng, 2, n, 3)
            answer = server.combine([site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)])
            np.testing.assert_array_equal(small.attaining(answer), attaining_sets(scores, 8))

    def test_answers_are_fixed_by_the_set(self, small: KeyHolder) -> None:
        """The same set from other scores and more agreeing sites is the same to the key holder."""
        sites, server = roles(small)
        one_site = np.array([[[0.2, 0.9, 0.9]], [[0.9, 0.9, 0.9]]])
        two_sites = np.array([[[0.5, 0.9, 0.9]], [[0.5, 0.7, 0.9]]])
        for scores in (one_site, two_sites):
            answer = server.combine([site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)])
            assert small.attaining(answer).tolist() == [[True, False, False]]

    def test_key_holder_survives_as_bytes(self, small: KeyHolder, rng: np.random.Generator) -> None:
        again = KeyHolder.load(small.save())
        assert again.key == small.key
        sites, server = roles(again)
        scores = scores_with_ties(rng, 2, 2, 3)
        answer = server.combine([site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)])
        np.testing.assert_array_equal(small.attaining(answer), attaining_sets(scores, 8))

    def test_classify_runs_all_roles(self, rng: np.random.Generator) -> None:
        scores = scores_with_ties(rng, 2, 3, 3)
        expected = attaining_sets(scores, 8).argmax(axis=1)
        np.testing.assert_array_equal(classify(scores, scheme=self.scheme), expected)

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ([[0.1, 0.2]], "3 columns, one per class, got 2"),
            ([[0.1, 0.2, 1.5]], r"\[0, 1\], got 1.5 at index \(0, 2\)"),
            ([[0.1, 0.2, -0.1]], r"\[0, 1\], got -0.1"),
            ([[0.1, np.nan, 0.1]], "finite"),
            ([[0.1, np.inf, 0.1]], "finite"),
            ([0.1, 0.2, 0.3], "matrix"),
            (np.zeros((0, 3)), "at least 1 row"),
        ],
    )
    def test_scores_that_cannot_be_encoded(self, small: KeyHolder, scores: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Site(small.site_key, 0).encrypt(scores)

    def test_sites_that_do_not_fit_together(self, small: KeyHolder) -> None:
        sites, server = roles(small)
        zero, one = (site.encrypt(np.full((2, 3), 0.5), question="a") for site in sites)
        with pytest.raises(ProtocolError, match="at least one site"):
            server.combine([])
        with pytest.raises(ProtocolError, match="at most 2 sites, got 3"):
            server.combine([zero, one, one])
        with pytest.raises(ProtocolError, match="must be the only one"):
            server.combine([zero, zero])
        with pytest.raises(ProtocolError, match="answers 1 queries of 'a', that of site 0 2"):
            server.combine([zero, sites[1].encrypt(np.full((1, 3), 0.5), question="a")])
        with pytest.raises(ProtocolError, match="answers 2 queries of 'b'"):
            server.combine([zero, sites[1].encrypt(np.full((2, 3), 0.5), question="b")])
        with pytest.raises(ProtocolError, match="question 'a', expected ''"):
            small.decide(server.combine([zero, one]))
        for site in (2, -1, 1.0):
            with pytest.raises(ValueError, match="site must be"):
                Site(small.site_key, site)  # type: ignore[arg-type]

    def test_messages_of_other_keys_or_settings(self, small: KeyHolder) -> None:
        scores = np.full((1, 3), 0.5)
        _, server = roles(small)
        other = KeyHolder(2, 3, bits=8, scheme=self.scheme)
        foreign = Site(other.site_key, 0).encrypt(scores)
        with pytest.raises(ProtocolError, match="is for key"):
            server.combine([foreign])
        with pytest.raises(ProtocolError, match="is for key"):
            small.decide(Server(other.evaluation_keys).combine([foreign]))
        wider = Site(self.holder(2, 4, 16).site_key, 0).encrypt(np.full((1, 4), 0.5))
        with pytest.raises(ProtocolError, match="is for classes 4, expected 3"):
            server.combine([wider])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"version": 2}, "protocol version must be 1, got 2"),
            ({"scheme": "none"}, "scheme"),
            ({"parameters": "0" * 16}, "parameters"),
            ({"n_classes": 4}, "classes 4"),
            ({"n_sites": 3}, "sites 3"),
            ({"bits": 16}, "bits 16"),
            ({"key": "0" * 16}, "key"),
            ({"site": 7}, "only one of a site in 0..1"),
            ({"queries": 0}, "at least 1 query"),
            ({"queries": 1000}, "1000 queries|1000 ciphertexts|part of"),
            ({"kind": "answer"}, "expected a message with scores, got one with answer"),
            ({"parts": [1]}, "bytes of parts"),
            ({"parts": [-1]}, "lengths of parts"),
            ({"site": "0"}, "'site' is '0'"),
            ({"extra": 1}, "must have the fields"),
            ({"digest": "0"}, "does not match the digest"),
        ],
    )
    def test_headers_that_lie(self, small: KeyHolder, changes: dict[str, object], message: str) -> None:
        sites, server = roles(small)
        honest = sites[0].encrypt(np.full((2, 3), 0.5))
        with pytest.raises(ProtocolError, match=message):
            server.combine([with_header(honest, **changes)])

    def test_damaged_bytes(self, small: KeyHolder, rng: np.random.Generator) -> None:
        sites, server = roles(small)
        honest = sites[0].encrypt(np.full((2, 3), 0.5))
        offset = read_header(honest)[1]
        damaged = [b"", b"KFSM", honest[:-1], honest + b"x", honest[:offset], b"x" + honest, honest[:8] + honest[9:]]
        for place in (4, 9, offset, len(honest) - 1, *rng.integers(0, len(honest), 20)):
            copy = bytearray(honest)
            copy[place] ^= 1 + int(rng.integers(255))
            damaged.append(bytes(copy))
        for message in damaged:
            with pytest.raises(ProtocolError):
                server.combine([message])
        with pytest.raises(ProtocolError, match="must be bytes, got str"):
            server.combine(["text"])  # type: ignore[list-item]

    def test_parts_that_are_no_scores(self, small: KeyHolder, rng: np.random.Generator) -> None:
        """Well-packed messages whose parts are rubbish, too few, too many or of another place."""
        sites, server = roles(small)
        header, views = unpack(sites[0].encrypt(np.full((2, 3), 0.5)), "scores")
        parts = [bytes(view) for view in views]
        rubbish = [
            [rng.bytes(len(part) + 1) for part in parts],
            [part[: len(part) // 2] for part in parts],
            [b""] * len(parts),
            parts[:-1],
            [*parts, parts[0]],
            [],
        ]
        named = {k: v for k, v in header.__dict__.items() if k not in ("version", "parts", "digest")}
        for wrong in rubbish:
            with pytest.raises(ProtocolError):
                server.combine([pack(wrong, **named)])
