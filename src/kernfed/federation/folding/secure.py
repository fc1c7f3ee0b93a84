"""Answers computed on encrypted scores, as a task of the federation (SFM 3.9; ``kernfed.secure`` has the roles).

Sites encrypt their scores under the key holder's key, a server combines them without being able to read them, and the
key holder reads which classes attain the minimum. Here the key holder and the server are objects of the asking process;
they exchange bytes only, so that either can be moved to a process of its own. Queries still travel to the sites in
clear: the protocol hides scores, not questions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray
from kernfed.errors import ProtocolError, Refused
from kernfed.federation.asking import Federation, Replies, leave_out, warn_missing
from kernfed.federation.folding.questions import raise_if_unusable, scores_question
from kernfed.federation.folding.scoring import scores
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.task import task
from kernfed.federation.site.authorise import check_scheme
from kernfed.federation.site.site import Site
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.folding import ABSENT
from kernfed.kahm.model import FoldingModel
from kernfed.secure import KeyHolder, Server, check_rule
from kernfed.secure import Site as EncryptingSite
from kernfed.secure.message import unpack


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
    generation = {site: member.generation for site, member in model.members_.items()}
    asked = scores_question(model.handle, X, generation)
    positions = {site: number for number, site in enumerate(model.sites)}
    key = np.frombuffer(holder.site_key, dtype=np.uint8)
    values = {**asked.values, "positions": positions, "labels": labels_to_values(model.classes_)}
    question = Payload({**asked.arrays, "key": key}, values)
    server = Server(holder.evaluation_keys)

    def check(site: str, payload: Payload) -> None:
        server.check(payload.arrays["message"].tobytes(), positions[site], len(X))

    needed = 0 if min_replies is None else min_replies
    replies = federation.ask(
        "secure_scores", question, sites=model.sites, timeout=timeout, min_replies=needed, check=check
    )
    raise_if_unusable("secure_scores", replies, everybody=min_replies is None)
    replies, answer = _combine(server, replies, min_replies)
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    warn_missing(missing, "the others answer", stacklevel=4)
    return np.asarray(model.classes_[holder.decide(answer)])


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
    table[:, [known.index(label) for label in held]] = own.arrays["scores"]
    try:
        role = EncryptingSite(payload.arrays["key"].tobytes(), payload.values["positions"][site.name])
        message = role.encrypt(table)
    except (ProtocolError, KeyError, ImportError) as error:
        raise Refused("bad question", f"site {site.name!r} cannot encrypt: {error}") from None
    return Payload({"message": np.frombuffer(message, dtype=np.uint8)})
