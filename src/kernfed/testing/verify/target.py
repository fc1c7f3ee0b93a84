"""A site under attack, and what came of an attack on it."""

from dataclasses import dataclass, field

from kernfed.site.authorise import FIXED_REASONS
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Question, Reply, decode_reply, encode_question
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.testing.verify.honest import Recording
from kernfed.testing.verify.twins import Twins, site_of

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
        """Honest payloads of a task without parts, or of a part; none where no learner asks it."""
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
