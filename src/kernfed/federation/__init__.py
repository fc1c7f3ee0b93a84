"""Learners ask, sites answer: federations, their engines, and the learners that run on them."""

from kernfed.federation import folding_tasks as _tasks  # registers what sites can answer
from kernfed.federation import ridge_tasks as _ridge_tasks
from kernfed.federation import secure as _secure_tasks
from kernfed.federation.averaging import AveragingLearner
from kernfed.federation.averaging_model import AveragingModel
from kernfed.federation.engine import Engine, Federation, Replies, TooFewReplies
from kernfed.federation.evaluation import Evaluation, evaluate
from kernfed.federation.folding import FoldingLearner, MissingSites
from kernfed.federation.local import Fault, LocalEngine
from kernfed.federation.message import Payload, Refusal
from kernfed.federation.policy import Policy
from kernfed.federation.ridge import DivergenceWarning, RidgeLearner
from kernfed.federation.schema import Schema, SchemaMismatch
from kernfed.federation.site import Site
from kernfed.federation.store import SiteStore
from kernfed.files import load, register_later, save  # here every format is registered

__all__ = [
    "AveragingLearner",
    "AveragingModel",
    "DivergenceWarning",
    "Engine",
    "Evaluation",
    "Fault",
    "Federation",
    "FoldingLearner",
    "LocalEngine",
    "MissingSites",
    "Payload",
    "Policy",
    "Refusal",
    "Replies",
    "RidgeLearner",
    "Schema",
    "SchemaMismatch",
    "Site",
    "SiteStore",
    "TooFewReplies",
    "evaluate",
    "load",
    "save",
]
register_later("kernfed.personal.model")
del _ridge_tasks, _secure_tasks, _tasks
