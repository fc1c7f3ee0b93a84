"""What can go wrong, by name: one base class for all of it, and one for what is only worth a warning.

Whoever calls the package catches ``KernfedError``; the command line makes exit codes of the kinds. Kinds that mean
wrong values are ``ValueError`` too, as everywhere in Python.
"""

from typing import Any


class KernfedError(Exception):
    """Everything that this package raises on purpose."""


class InputError(KernfedError, ValueError):
    """A value, a file or a setting that cannot be used; the message says what was expected and what came."""


class DataError(InputError):
    """A table that cannot be read as rows, labels and names."""


class DatasetNotFoundError(KernfedError, FileNotFoundError):
    """A named data set that is not on this machine."""


class FileFormatError(InputError):
    """A file that is not a model of ours, is damaged, or was written by a newer version."""


class MessageError(InputError):
    """Bytes that are not a message, or a message that does not fit."""


class SchemaMismatch(InputError):
    """Sites describe their data differently, so their answers cannot be combined."""


class PolicyError(InputError):
    """A ``site.toml`` that cannot be followed."""


class StoreError(InputError):
    """A store whose files cannot be trusted."""


class BudgetExceeded(InputError):
    """A release that would cost more than what is left."""


class ProtocolError(InputError):
    """Bytes between the roles of an encrypted answer that must not be used."""


class NotConnected(KernfedError, RuntimeError):
    """A model whose machines are at the sites was used without a federation."""


class StaleModel(KernfedError, RuntimeError):
    """A site does not have the machines this model refers to: they have changed since, or are in another store."""


class RunFailed(KernfedError, RuntimeError):
    """A run on a deployment that did not end well."""


class HubUnreachable(KernfedError, ConnectionError):
    """A hub that does not answer, does not know the key, or is not the one that the credentials trust."""


class Refused(KernfedError):
    """Raised at a site to answer with a refusal: a code to act on and a sentence to read.

    ``public`` says that the sentence follows from the policy and the question alone, so that it may leave a site that
    requires privacy; of all others such a site sends a fixed one.
    """

    def __init__(self, code: str, reason: str, *, public: bool = False) -> None:
        super().__init__(reason)
        self.code, self.reason, self.public = code, reason, public


class SitesLost(KernfedError):
    """Sites that took part did not answer ``task``; ``replies`` says which, and why. Learners go on without them."""

    def __init__(self, task: str, replies: Any) -> None:
        super().__init__(task)
        self.task, self.replies = task, replies

    @property
    def reasons(self) -> dict[str, str]:
        """Why each site is missing, in words."""
        return {site: refusal.reason for site, refusal in self.replies.missing.items()}


class TooFewReplies(KernfedError, RuntimeError):
    """Fewer sites answered than the learner needs. ``missing`` maps those that did not to their refusals."""

    def __init__(self, task: str, needed: int, replies: Any) -> None:
        reasons = "; ".join(f"{site!r}: {refusal.reason}" for site, refusal in replies.missing.items())
        super().__init__(f"task {task!r} needs {needed} replies and got {len(replies)}; {reasons}")
        self.missing = replies.missing


class KernfedWarning(UserWarning):
    """Everything that this package warns of."""


class IdentifierAmongFeatures(KernfedWarning):
    """A column to learn from looks like one that numbers the rows."""


class UnitsDiffer(KernfedWarning):
    """A site's column looks to be in another unit than that of the others."""


class ManyClasses(KernfedWarning):
    """Labels look like values to regress on, and are learned as classes."""


class MissingSites(KernfedWarning):
    """Some sites did not answer, and the result is that of the others."""


class DivergenceWarning(KernfedWarning):
    """FedNewton moves away from the solution; ``method="conjugate"`` does not."""


class LedgerNotKept(KernfedWarning):
    """Sites release under differential privacy and forget with this process what they released and what it cost."""


class LedgerRewound(KernfedWarning):
    """A site's ledger has fewer charges than it once told: its store was set back, and releases are not counted."""


class UnprotectedClasses(KernfedWarning):
    """Some classes are held by so few sites that wrong ones could decide them, whatever "kth" or "median" survives.

    ``model.unprotected_`` lists them.
    """


class RenamedTask(KernfedWarning):
    """A policy has the name that a task had in an earlier version; it is read as that of today."""


class TemporaryStores(KernfedWarning):
    """A saved model refers to machines that vanish with this process."""
