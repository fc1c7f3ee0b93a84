"""Two sites with the same public facts and other rows, asked the same questions on the same tape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.privacy.accounting import event_to_dict
from kernfed.secure.committee.keys import write_secret
from kernfed.site.authorise import FIXED_REASONS
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, Reply, decode_reply, encode_question
from kernfed.site.release.books import LEDGER, open_ledger
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.site.store import KEY_FILE
from kernfed.testing.verify.questions import Recording, known_identity, pinned_policy
from kernfed.testing.verify.tape import Tape, playing

Floats = npt.NDArray[np.float64]
#: How rows of the other twin look, from rows X (n, p) and standard normal numbers Z (n, p): each is what some
#: computation stumbles over.
_SHAPED: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "other": lambda _, Z: Z,
    "huge": lambda _, Z: 1e300 * Z,
    "largest": lambda _, Z: np.finfo(np.float64).max * np.sign(Z),
    "constant": lambda _, Z: np.full(Z.shape, Z[0, 0]),
    "zeros": lambda _, Z: np.zeros(Z.shape),
    "duplicates": lambda _, Z: np.tile(Z[:1], (len(Z), 1)),
    "one far away": lambda X, Z: np.vstack([X[:-1], np.full((1, Z.shape[1]), 1e300)]),
    "nearly singular": lambda _, Z: Z[:, :1] + 1e-14 * Z,
    "denormal": lambda _, Z: 5e-324 * np.ceil(np.abs(Z)),
    "a trillionth": lambda X, _: X * (1 + 1e-12),
    "integers": lambda _, Z: np.rint(3 * Z),
}
SHAPES = (*_SHAPED, "mixed")


@dataclass(frozen=True)
class Difference:
    """How two replies to one question differ, in words that hold nothing of a row."""

    task: str
    what: str
    rows: str = ""

    def __str__(self) -> str:
        return f"{self.task}: {self.what}" + (f" (rows: {self.rows})" if self.rows else "")


# Rows -------------------------------------------------------------------------------------------------------------


def other_rows(rows: Rows, policy: Policy, shape: str, draws: np.random.Generator) -> Rows:
    """Rows of the same public facts, and otherwise of ``shape`` (one of ``SHAPES``).

    Number, ids, columns and type stay. Labels stay where they are public; private ones and targets become others.
    """
    X = _shaped(rows.X.astype(np.float64), shape, draws)
    limit = float(np.finfo(rows.X.dtype).max)
    labels = _other_labels(rows.y, policy, shape, draws)
    return replace(rows, X=np.clip(X, -limit, limit).astype(rows.X.dtype), y=labels)


def _shaped(X: Floats, shape: str, draws: np.random.Generator) -> Floats:
    """Rows (n, p) of a shape; of "mixed" every row is of another one."""
    Z = draws.normal(size=X.shape)
    if shape != "mixed":
        return _SHAPED[shape](X, Z)
    parts = [_shaped(X, kind, draws) for kind in _SHAPED]
    return np.array([parts[draws.integers(len(parts))][row] for row in range(len(X))])


def _other_labels(y: npt.NDArray[Any], policy: Policy, shape: str, draws: np.random.Generator) -> npt.NDArray[Any]:
    """Labels (n,) of the same type: those of ``y`` where they are public, else others."""
    if policy.require_privacy and policy.labels == "targets":
        values = _shaped(np.asarray(y, dtype=np.float64)[:, None], shape, draws)[:, 0]
        if draws.integers(3) == 0:  # as if they were classes
            values = draws.choice([0.0, 1.0], size=len(y))
        if y.dtype.kind == "f":
            limit = float(np.finfo(y.dtype).max)
            return np.clip(values, -limit, limit).astype(y.dtype)
        return np.clip(np.nan_to_num(values), 0 if y.dtype.kind in "ub" else -99, 99).astype(y.dtype)
    if not policy.private_labels:
        return y
    others = draws.choice(np.unique(y), size=len(y))
    if len(y) > 1 and draws.integers(2):  # a label that nobody has declared
        others[draws.integers(len(y))] = _strange(y)
    return others


def _strange(y: npt.NDArray[Any]) -> Any:
    """A label of the type of ``y`` that ``y`` does not hold, if its type has one."""
    if y.dtype.kind == "U":
        return "?" * max(1, y.dtype.itemsize // 4)
    return 97 if y.dtype.kind in "iuf" else y[0]


# Sites ------------------------------------------------------------------------------------------------------------


class Twins:
    """Two sites of one name and policy, with ``rows`` and ``others``, on tapes of one seed.

    Use inside ``taped_mechanisms``.
    """

    def __init__(
        self, name: str, policy: Policy, rows: Rows, others: Rows, *, seed: int = 0, shape: str = "", **about: Any
    ) -> None:
        self.shape = shape
        self.sites = tuple(site_of(name, policy, part, **about) for part in (rows, others))
        self.tapes = (Tape(seed), Tape(seed))
        self._name = name

    def ask(self, question: Question, data: bytes) -> tuple[Reply | None, Difference | None]:
        """The first site's reply to a question, encoded as ``data``, and how the other's differs."""
        replies = self.answers(data)
        try:
            read = [decode_reply(reply, question, self._name) for reply in replies]
        except ValueError:  # a question that cannot be read has an answer that cannot either
            read = []
        if replies[0] == replies[1]:
            return read[0] if read else None, None
        what = "replies differ" if not read else compare(*read)
        return read[0] if read else None, Difference(question.task, what, self.shape)

    def answers(self, data: bytes) -> list[bytes]:
        """Replies of both sites, as bytes."""
        replies = []
        for site, tape in zip(self.sites, self.tapes, strict=True):
            with playing(tape):
                replies.append(site.answer(data))
        return replies

    def charges_differ(self) -> Difference | None:
        """Whether the two ledgers say that different things were paid."""
        first, second = map(_charges, self.sites)
        if first == second:
            return None
        what = f"{len(first)} and {len(second)} charges" if len(first) != len(second) else "charges of other amounts"
        return Difference("the ledger", what, self.shape)


def site_of(name: str, policy: Policy, rows: Rows, **about: Any) -> Site:
    """A site with these rows and an empty store that vanishes with it, which knows who tries it out."""
    site = Site(name, rows.X, rows.y, ids=rows.ids, policy=pinned_policy(policy, name), persons=rows.persons, **about)
    write_secret(site.store.path / KEY_FILE, known_identity(name).private)
    return site


def _charges(site: Site) -> list[Any]:
    """What was paid and by how many; not for which data and when."""
    if not (site.store.path / LEDGER).exists():
        return []
    return [
        ([event_to_dict(event) for event in entry.events], None if entry.persons is None else len(entry.persons))
        for entry in open_ledger(site).entries()
    ]


def compare(first: Reply, second: Reply) -> str:
    """In which way two replies differ, without what they say."""
    if (first.refusal is None) != (second.refusal is None):
        refused = first.refusal or second.refusal
        assert refused is not None
        return f"one site answers, the other refuses ({refused.code})"
    if first.refusal is not None and second.refusal is not None:
        if first.refusal.code != second.refusal.code:
            return f"one refuses with {first.refusal.code!r}, the other with {second.refusal.code!r}"
        return f"the reasons of a refusal ({first.refusal.code!r}) differ"
    return _payloads_differ(first, second)


def _payloads_differ(first: Reply, second: Reply) -> str:
    arrays, others = first.payload.arrays, second.payload.arrays
    if set(arrays) != set(others) or any(arrays[name].shape != others[name].shape for name in arrays):
        return "the sizes of arrays differ"
    odd = [name for name in sorted(arrays) if arrays[name].tobytes() != others[name].tobytes()]
    if odd:
        return f"array {odd[0]!r} differs"
    values = _different_keys(first.payload.values, second.payload.values)
    return f"value {values!r} differs" if values else "headers differ"


def _different_keys(values: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    return next((name for name in {**values, **others} if values.get(name) != others.get(name)), "")


#: Codes of refusals that follow from policy and question alone.
_PUBLIC_CODES = ("policy", "limit", "unknown task", "refused", "bad run", "repeated run")
#: Whether a site held (None where an attack does not apply), and what happened.
Verdict = tuple[bool | None, str]


@dataclass(frozen=True)
class Outcome:
    """What came of an attack: whether the site held (None where the attack does not apply), and what happened."""

    attack: str
    held: bool | None
    told: str


@dataclass
class Target:
    """A site under attack: its name, policy, rows, columns, and honest questions to begin with."""

    name: str
    policy: Policy
    rows: Rows
    recording: Recording
    columns: tuple[str, ...] = ()
    _asked: int = field(default=0, repr=False)

    @property
    def secret_labels(self) -> bool:
        """Whether nothing of labels may be told."""
        return self.policy.require_privacy and (self.policy.private_labels or self.policy.labels == "targets")

    def site(self) -> Site:
        """The site with its rows and an empty store."""
        return site_of(self.name, self.policy, self.rows, columns=self.columns)

    def twins(self, others: Rows) -> Twins:
        """The site beside one with other rows."""
        return Twins(self.name, self.policy, self.rows, others, columns=self.columns)

    def question(self, task: str, payload: Payload, caller: str = "attacker") -> tuple[Question, bytes]:
        """A question under an id of its own, and its bytes."""
        self._asked += 1
        question = Question("attack", f"attack {self._asked}", task.partition(":")[0], payload, caller)
        return question, encode_question(question)

    def ask(self, site: Site, task: str, payload: Payload, caller: str = "attacker") -> Reply:
        """The site's reply."""
        question, data = self.question(task, payload, caller)
        return decode_reply(site.answer(data), question, self.name)

    def honest(self, task: str) -> tuple[Payload, ...]:
        """Honest payloads of a task; none where no learner asks it."""
        return self.recording.get(task, ())


def sentence_is_public(reply: Reply) -> bool:
    """Whether a reply says nothing of rows by refusing."""
    refusal = reply.refusal
    return refusal is None or refusal.code in _PUBLIC_CODES or FIXED_REASONS.get(refusal.code) == refusal.reason


def ask_twins(target: Target, others: Rows, questions: list[tuple[str, Payload]]) -> str:
    """What differs, or is said in a refusal, when two sites are asked; nothing where all is well."""
    twins = target.twins(others)
    for task, payload in questions:
        question, data = target.question(task, payload)
        reply, difference = twins.ask(question, data)
        if difference is not None:
            return f"{difference.task}: {difference.what}"
        if target.policy.require_privacy and reply is not None and not sentence_is_public(reply):
            return f"{task}: a refusal of its own words"
    return ""
