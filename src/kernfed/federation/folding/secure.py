"""Answers computed on encrypted scores, as a task of the federation (SFM 3.9; ``kernfed.secure`` has the roles).

Sites encrypt their scores under the key holder's key, a server combines them without being able to read them, and the
key holder reads which classes attain the minimum. ``combined_answer`` is the server's part: it asks the sites and has
no secret, so a gateway or a job of Flower does it for a key holder elsewhere. In ``secure_predict`` both are objects of
the asking process, which exchange bytes only. Queries still travel to the sites in clear: the protocol hides scores,
not questions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError, ProtocolError, Refused
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.folding.questions import raise_if_unusable, scores_question
from kernfed.federation.folding.scoring import scores
from kernfed.federation.survey import leave_out
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.folding import ABSENT
from kernfed.kahm.model import FoldingModel
from kernfed.secure import KeyHolder, Server, check_rule
from kernfed.secure import Site as EncryptingSite
from kernfed.secure.message import unpack
from kernfed.site.authorise import check_scheme
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.protocol.traffic import Replies
from kernfed.site.site import Site


@dataclass(frozen=True)
class EncryptedAnswer:
    """What the server made of the messages of ``sites``, readable by the key holder alone; and who is missing."""

    message: bytes
    sites: tuple[str, ...]
    missing: Mapping[str, str]


def secure_predict(
    federation: Federation,
    model: FoldingModel,
    X: FloatArray,
    *,
    scheme: str,
    bits: int,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> npt.NDArray[Any]:
    """Labels (n,) of queries X (n, p) by ``scheme`` ("plain", "bfv" or "tfhe") on ``bits``-bit scores."""
    check_rule(model.parameters.measure, model.parameters.aggregate)
    holder = KeyHolder(len(model.sites), len(model.classes_), bits=bits, scheme=scheme)
    server = Server(holder.evaluation_keys)
    answer = combined_answer(
        federation, model, X, site_key=holder.site_key, server=server, min_replies=min_replies, timeout=timeout
    )
    warn_missing(answer.missing, "the others answer")
    return np.asarray(model.classes_[holder.decide(answer.message)])


def combined_answer(
    federation: Federation,
    model: FoldingModel,
    X: FloatArray,
    *,
    site_key: bytes,
    server: Server,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> EncryptedAnswer:
    """The server's part: ask the sites about queries X (n, p) under ``site_key``, and combine what they encrypted.

    Queries are as the machines know them, after a projection where the model has one. Sites whose message cannot be
    combined are missing, as are those that do not answer; without ``min_replies`` all must.
    """
    check_rule(model.parameters.measure, model.parameters.aggregate)
    check_keys(model, site_key, server)
    generation = {site: member.generation for site, member in model.members_.items()}
    asked = scores_question(model.handle, X, generation)
    positions = {site: number for number, site in enumerate(model.sites)}
    key = np.frombuffer(site_key, dtype=np.uint8)
    values = {**asked.values, "positions": positions, "labels": labels_to_values(model.classes_)}
    question = Payload({**asked.arrays, "key": key}, values)

    def check(site: str, payload: Payload) -> None:
        server.check(payload.arrays["message"].tobytes(), positions[site], len(X))

    needed = 0 if min_replies is None else min_replies
    replies = federation.ask(
        "secure_scores", question, sites=model.sites, timeout=timeout, min_replies=needed, check=check
    )
    raise_if_unusable("secure_scores", replies, everybody=min_replies is None)
    replies, message = _combine(server, replies, min_replies)
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    return EncryptedAnswer(message, tuple(site for site, _ in replies), missing)


def check_encryptable(model: FoldingModel) -> None:
    """Refuse a model whose decision cannot be computed on encrypted scores."""
    check_rule(model.parameters.measure, model.parameters.aggregate)
    if model.prior not in (None, "training"):
        raise InputError(f"encrypted scores are compared as they are: leave out the prior, got {model.prior!r:.80}")


def check_keys(model: FoldingModel, site_key: bytes, server: Server) -> None:
    """Refuse keys that do not belong together, or are made for another number of sites or classes."""
    header, _ = unpack(site_key, "site key")
    if header.key != server.key:
        raise ProtocolError("the key for the sites and the evaluation keys must be of one key holder, got two")
    made, needed = (header.n_sites, header.n_classes), (len(model.sites), len(model.classes_))
    if made != needed:
        raise ProtocolError(
            f"the keys must be made for {needed[0]} sites and {needed[1]} classes as the model has, "
            f"got {made[0]} and {made[1]}; make new ones"
        )


def _combine(server: Server, replies: Replies, min_replies: int | None) -> tuple[Replies, bytes]:
    """The answer from all messages; where they cannot be combined, from those that can be by themselves."""
    messages = {site: payload.arrays["message"].tobytes() for site, payload in replies}
    try:
        return replies, server.combine(list(messages.values()))
    except Exception:  # what a scheme raises at what is no ciphertext
        reasons: dict[str, str] = {}
        for site, message in messages.items():
            try:
                server.combine([message])
            except Exception as error:
                reasons[site] = f"the message of site {site!r} was refused: {error}"
        if not reasons:
            raise
    left = leave_out("secure_scores", replies, reasons, min_replies)
    return left, server.combine([messages[site] for site, _ in left])


@task("secure_scores", leaves="encrypted", under_privacy="released", queries=True, locked=False)
def secure_scores(site: Site, payload: Payload) -> Payload:
    """Scores of queries for all classes of the model, encrypted; a class the site lacks has the largest score."""
    try:
        header, _ = unpack(payload.arrays["key"].tobytes(), "site key")
    except ProtocolError as error:
        raise Refused("bad question", f"site {site.name!r} cannot encrypt: {error}") from None
    check_scheme(site.policy, site.name, header.scheme, header.digest)
    queries = {"X": payload.arrays["X"]}
    own = scores(site, Payload(queries, payload.values))
    known = labels_from_values(payload.values["labels"]).tolist()
    held = labels_from_values(own.values["classes"]).tolist()
    if not set(held) <= set(known):
        raise Refused("stale", f"site {site.name!r} holds classes that the model does not know")
    table = np.full((len(queries["X"]), len(known)), ABSENT["rms"])
    table[:, ClassIndex(known).numbers(held)] = own.arrays["scores"]
    try:
        role = EncryptingSite(payload.arrays["key"].tobytes(), payload.values["positions"][site.name])
        message = role.encrypt(table)
    except (ProtocolError, KeyError, ImportError) as error:
        raise Refused("bad question", f"site {site.name!r} cannot encrypt: {error}") from None
    return Payload({"message": np.frombuffer(message, dtype=np.uint8)})
