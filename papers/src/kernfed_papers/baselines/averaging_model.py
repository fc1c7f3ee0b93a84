"""The model of federated averaging: weights, the scaling of its features, and the history of its rounds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.data import check_rows
from kernfed.errors import InputError
from kernfed.federation import Model
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.kernels import single_blas_thread
from kernfed_papers.arrays import FloatArray
from kernfed_papers.baselines.network import Weights, layer_sizes, logits, weight_shapes
from kernfed_papers.checks import check_choice, check_count, check_number

if TYPE_CHECKING:
    from kernfed.report import Curves, ModelParts

MODELS = ("linear", "mlp")
#: Rows per product in prediction; a fixed shape, so that no bit depends on how the caller cuts its rows.
_BLOCK = 256
#: Rows of one product: as few as BLAS rounds alike on every processor, wherever among them a row stands.
_TILE = 8


@dataclass(frozen=True)
class AveragingParameters:
    """What all sites do alike."""

    model: str = "linear"
    local_epochs: int = 1
    learning_rate: float = 0.3
    batch_size: int = 32
    hidden: int = 128
    proximal: float = 0.0
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.model, "model", MODELS)
        check_count(self.local_epochs, "local_epochs")
        check_number(self.learning_rate, "learning_rate", zero=False)
        check_count(self.batch_size, "batch_size")
        check_count(self.hidden, "hidden")
        check_number(self.proximal, "proximal", zero=True)
        check_choice(self.dtype, "dtype", ("float32", "float64"))
        check_count(self.seed, "seed", at_least=0)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Centre (p,) and scale (p,) of the columns."""

    mean: FloatArray
    scale: FloatArray

    @classmethod
    def none(cls, width: int) -> "Scaling":
        """Features as they are."""
        return cls(np.zeros(width), np.ones(width))

    @classmethod
    def of(cls, mean: FloatArray, variance: FloatArray) -> "Scaling":
        """Standardization; a column that does not vary beyond rounding is only centred."""
        varies = variance > 1e-20 * (mean**2)
        return cls(mean, np.sqrt(np.where(varies, variance, 1.0)))

    def apply(self, X: FloatArray, dtype: str) -> FloatArray:
        """Rows X (n, p) centred and scaled, in the precision asked for."""
        scaled: FloatArray = ((X - self.mean) / self.scale).astype(dtype)
        return scaled


@dataclass(frozen=True)
class AveragingRound:
    """One round: sites that answered and their rows, their mean loss in training, and who was missing and why.

    ``bytes_down`` (to the sites) and ``bytes_up`` (from them) count everything from the beginning of ``fit``.
    """

    number: int
    sites: int
    rows: int
    loss: float
    bytes_down: int
    bytes_up: int
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AveragingModel(Model):
    """Softmax classifier with averaged weights (W1, b1[, W2, b2]) of standardized features.

    classes_ : (C,) sorted labels. n_features_in_, feature_names_in_ : number and names of the columns. history_ : what
    happened in each round. missing_ : sites that took no part, and why.
    """

    parameters: AveragingParameters
    classes_: npt.NDArray[Any]
    n_features_in_: int
    weights_: Weights
    scaling: Scaling
    history_: tuple[AveragingRound, ...] = ()
    missing_: Mapping[str, str] = field(default_factory=dict)
    feature_names_in_: tuple[str, ...] = ()

    def settings(self) -> Mapping[str, Any]:
        """How the weights were trained."""
        return self.parameters.to_values()

    def report_parts(self) -> "ModelParts":
        """Loss and bytes over the rounds, for the model's page."""
        from kernfed.report import Fact, ModelParts, Section, bytes_curve, history_curve, missing_tables

        rounds, classes = [done.number for done in self.history_], len(self.classes_)
        figures: tuple[Curves, ...] = ()
        if len(rounds) > 1:
            figures = (
                history_curve([(done.number, done.loss) for done in self.history_], "Mean loss in training"),
                bytes_curve(
                    rounds,
                    [done.bytes_up for done in self.history_],
                    [done.bytes_down for done in self.history_],
                    total=True,
                ),
            )
        unused = {"hidden"} if self.parameters.model == "linear" else set()
        return ModelParts(
            "Federated averaging",
            f"Federated averaging of a {self.parameters.model} model into {classes} classes, {len(rounds)} rounds.",
            (Fact("Rounds", f"{len(rounds):,}"), Fact("Classes", f"{classes:,}", f"{self.n_features_in_:,} columns")),
            ("The file holds weights, no rows. In training the sites sent weights fitted to their rows.",),
            {name: value for name, value in self.settings().items() if name not in unused},
            (Section("Training", figures=figures),) if figures else (),
            tables=missing_tables(self.missing_),
        )

    def scores(self, X: npt.ArrayLike) -> FloatArray:
        """Negative outputs (n, C): SMALLER is better."""
        return -self._logits(X)

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Label with the largest output, (n,); ties go to the first class."""
        return np.asarray(self.classes_[self._logits(X).argmax(axis=1)])

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Probabilities (n, C) in the order of ``classes_``."""
        probabilities: FloatArray = scipy.special.softmax(self._logits(X), axis=1)
        return probabilities

    def _logits(self, X: npt.ArrayLike) -> FloatArray:
        rows = check_rows(X, width=self.n_features_in_, columns=self.feature_names_in_)
        outputs = np.empty((len(rows), len(self.classes_)))
        block = np.zeros((_BLOCK, self.n_features_in_), self.parameters.dtype)
        tiles = block.reshape(-1, _TILE, self.n_features_in_)  # one call of BLAS each
        with single_blas_thread():
            for start in range(0, len(rows), _BLOCK):
                chosen = self.scaling.apply(rows[start : start + _BLOCK], self.parameters.dtype)
                block[: len(chosen)] = chosen
                found = logits(self.weights_, tiles).reshape(_BLOCK, len(self.classes_))
                outputs[start : start + _BLOCK] = found[: len(chosen)]
        return outputs


def _dump(model: AveragingModel) -> Record:
    arrays = {f"w{place}": array for place, array in enumerate(model.weights_)}
    arrays |= {"mean": model.scaling.mean, "scale": model.scaling.scale}
    values = {
        "parameters": model.parameters.to_values(),
        "classes": labels_to_values(model.classes_),
        "width": model.n_features_in_,
        "history": [asdict(done) for done in model.history_],
        "missing": dict(model.missing_),
        "columns": list(model.feature_names_in_),
    }
    return Record(arrays, values)


def _load(record: Record) -> AveragingModel:
    values, arrays = record.values, record.arrays
    parameters, classes = AveragingParameters(**values["parameters"]), labels_from_values(values["classes"])
    width = check_count(values["width"], "width")
    shapes = weight_shapes(layer_sizes(parameters.model, width, parameters.hidden, len(classes)))
    expected = {**{f"w{place}": shape for place, shape in enumerate(shapes)}, "mean": (width,), "scale": (width,)}
    for name, shape in expected.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise InputError(f"{name} must hold finite numbers of shape {shape}, got shape {arrays[name].shape}")
    history = tuple(AveragingRound(**done) for done in values["history"])
    weights = tuple(arrays[f"w{place}"] for place in range(len(shapes)))
    return AveragingModel(
        parameters,
        classes,
        width,
        weights,
        Scaling(arrays["mean"], arrays["scale"]),
        history,
        dict(values["missing"]),
        tuple(map(str, values["columns"])),
    )


register("AveragingModel", 1, AveragingModel, _dump, _load)
