"""What sites do for an ``AveragingLearner``: sums for the standardization, and rounds of gradient descent."""

import numpy as np
import numpy.typing as npt

from kernfed.errors import Refused
from kernfed.federation import Payload, Rows, Site, task
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kernels import single_blas_thread
from kernfed_papers.baselines.averaging_model import AveragingModel, AveragingParameters, Scaling
from kernfed_papers.baselines.network import Weights, layer_sizes, train, weight_shapes
from kernfed_papers.draws import generator


def round_question(model: AveragingModel, number: int) -> Payload:
    """Payload of the task "averaging_round": the global weights, the scaling, and how to train."""
    arrays = {f"w{place}": array for place, array in enumerate(model.weights_)}
    arrays |= {"mean": model.scaling.mean, "scale": model.scaling.scale}
    values = {"parameters": model.parameters.to_values(), "round": number, "classes": labels_to_values(model.classes_)}
    return Payload(arrays, values)


def weights_of(payload: Payload) -> Weights:
    """The weights in a question or a reply, in order."""
    count = sum(name.startswith("w") for name in payload.arrays)
    return tuple(payload.arrays[f"w{place}"] for place in range(count))


@task("averaging_moments", leaves="statistics")
def averaging_moments(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """Rows, mean (p,) and sum of squares around the mean (p,) of the site's columns."""
    X = _rows_of(site).X.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # whoever asked refuses what is not finite
        mean = X.mean(axis=0)
        squares = ((X - mean) ** 2).sum(axis=0)
    return Payload({"rows": np.array([float(len(X))]), "mean": mean, "squares": squares})


@task("averaging_round", leaves="statistics")
def averaging_round(site: Site, payload: Payload) -> Payload:
    """Weights after gradient descent on the site's rows from the weights in the question, rows, and mean loss.

    Rows and loss travel as numbers of fixed size, so that the size of a reply tells nothing.
    """
    values = payload.values
    parameters = AveragingParameters(**values["parameters"])
    classes = labels_from_values(values["classes"])
    rows = _rows_of(site)
    weights = weights_of(payload)
    sizes = layer_sizes(parameters.model, rows.X.shape[1], parameters.hidden, len(classes))
    if [array.shape for array in weights] != weight_shapes(sizes):
        raise Refused("bad question", f"the weights do not fit layers of {sizes} units")
    site.allow(steps=parameters.local_epochs * -(-len(rows.y) // parameters.batch_size))
    X = Scaling(payload.arrays["mean"], payload.arrays["scale"]).apply(rows.X, parameters.dtype)
    draws = generator(parameters.seed, site.name, "averaging", str(values["round"]))
    with single_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # looked at below
        trained, loss = train(
            weights,
            X,
            _class_numbers(site, rows, classes),
            epochs=parameters.local_epochs,
            learning_rate=parameters.learning_rate,
            batch_size=parameters.batch_size,
            proximal=parameters.proximal,
            draws=draws,
            check=site.check_time,
        )
    if not np.isfinite(loss) or not all(np.isfinite(array).all() for array in trained):
        raise Refused(
            "diverged",
            f"gradient descent diverged at site {site.name!r}; "
            f"lower learning_rate ({parameters.learning_rate:g}) or standardize",
        )
    arrays = {f"w{place}": array for place, array in enumerate(trained)}
    return Payload({**arrays, "rows": np.array([float(len(X))]), "loss": np.array([loss])})


def _rows_of(site: Site) -> Rows:
    """The site's rows, if it has any."""
    rows = site.rows()
    if not len(rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    return rows


def _class_numbers(site: Site, rows: Rows, classes: npt.NDArray[np.generic]) -> npt.NDArray[np.intp]:
    """Positions of the rows' labels among all classes."""
    unknown = ~np.isin(rows.y, classes)
    if unknown.any():
        raise Refused("unknown class", f"site {site.name!r} has class {rows.y[unknown][0]!r}, which the model lacks")
    return np.searchsorted(classes, rows.y)
