"""A head as ONNX: a linear map on features of rows, its probabilities and labels, for programs without this package.

features   phi = x B, or s sin(x B W + b) with all phases of the cosines in b
values     v = phi V + a  (n, q), to regress clipped to bounds where there are any
to classify  p = softmax(v / T), or without a temperature the nearest point of the simplex; then p_c f_c / sum p f
             where other shares of classes are asked for; the label is that of the largest
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._version import __version__
from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.files import atomic_path
from kernfed.kernels.features import FourierFeatures

#: Versions of the operators and of the file that are written: onnxruntime reads them from 1.13 on.
_OPERATORS, _FILE = 17, 8


@dataclass(frozen=True, eq=False)
class Head:
    """What a head computes of rows (n, p).

    weights : V (M, q). offset : a (q,). features : of rows, None where the columns are the features. basis : B (p, k),
    None for none. classes : labels (q,), None to regress. temperature : T, None for the nearest probabilities.
    factors : f (q,), shares of classes over those that the values are for, None where they are the same.
    bounds : (low, high) that values to regress are clipped to, None for none.
    """

    weights: FloatArray
    offset: FloatArray
    features: FourierFeatures | None = None
    basis: FloatArray | None = None
    classes: npt.NDArray[Any] | None = None
    temperature: float | None = None
    factors: FloatArray | None = None
    bounds: tuple[float, float] | None = None

    @property
    def width(self) -> int:
        """Columns p of the rows that go in."""
        if self.basis is not None:
            return len(self.basis)
        return len(self.weights) if self.features is None else self.features.width

    def to_onnx(self, path: str | os.PathLike[str], columns: tuple[str, ...] = ()) -> None:
        """Write the head to one file, whole or not at all. Needs the extra ``[onnx]``.

        Input ``rows`` (n, p), double. Outputs ``label`` (n,), ``probabilities`` and ``values`` (n, C) to classify,
        ``value`` (n,) to regress. ``columns`` are told in the file, with the classes.
        """
        graph = _Graph()
        values = self._values(graph)
        if self.classes is None:
            if self.bounds is not None:
                values = graph.add("Clip", values, *(graph.array(np.array(end)) for end in self.bounds))
            graph.output("value", graph.add("Squeeze", values, graph.numbers([1])), "double", ["n"])
        else:
            likely = self._probabilities(graph, values)
            place = graph.add("ArgMax", likely, axis=1, keepdims=0)
            graph.output("label", graph.add("Gather", graph.labels(self.classes), place), _kind(self.classes), ["n"])
            graph.output("probabilities", likely, "double", ["n", len(self.classes)])
            graph.output("values", values, "double", ["n", len(self.classes)])
        known = [] if self.classes is None else self.classes.tolist()
        told = {"columns": json.dumps(list(columns)), "classes": json.dumps(known), "kernfed": __version__}
        with atomic_path(path) as temporary:
            temporary.write_bytes(graph.written(self.width, told))

    def _values(self, graph: "_Graph") -> str:
        """Name of the values (n, q)."""
        rows = "rows" if self.basis is None else graph.add("MatMul", "rows", graph.array(self.basis))
        if self.features is not None:
            rows = _fourier(graph, rows, self.features)
        return graph.add("Add", graph.add("MatMul", rows, graph.array(self.weights)), graph.array(self.offset))

    def _probabilities(self, graph: "_Graph", values: str) -> str:
        """Name of the probabilities (n, C)."""
        if self.temperature is not None:
            cooled = graph.add("Div", values, graph.array(np.array(self.temperature)))
            likely = graph.add("Softmax", cooled, axis=1)
        else:
            likely = _on_simplex(graph, values, self.weights.shape[1])
        if self.factors is None:
            return likely
        weighed = graph.add("Mul", likely, graph.array(self.factors))
        return graph.add("Div", weighed, graph.add("ReduceSum", weighed, graph.numbers([1]), keepdims=1))


def _fourier(graph: "_Graph", rows: str, features: FourierFeatures) -> str:
    """Features of ``FourierFeatures``; a cosine is a sine a quarter turn later, for which every runtime has doubles."""
    W, phases = features.frequencies, features.phases
    if features.kind == "paired":
        W, phases = np.hstack([W, W]), np.repeat([0.5 * np.pi, 0.0], W.shape[1])
    else:
        phases = phases + 0.5 * np.pi
    angles = graph.add("Add", graph.add("MatMul", rows, graph.array(W)), graph.array(phases))
    scale = np.sqrt((2.0 if features.scale == "unbiased" else 1.0) / features.n_components)
    return graph.add("Mul", graph.add("Sin", angles), graph.array(np.array(scale)))


def _on_simplex(graph: "_Graph", values: str, count: int) -> str:
    """The nearest points of the simplex, as in ``project_on_simplex``."""
    ordered = graph.add("TopK", values, graph.numbers([count]), axis=1, outputs=2)
    summed = graph.add("CumSum", ordered, graph.numbers(1))
    one = graph.array(np.array(1.0))
    excess = graph.add("Div", graph.add("Sub", summed, one), graph.array(np.arange(1.0, count + 1)))
    inside = graph.add("Cast", graph.add("Greater", ordered, excess), to="int64")
    support = graph.add("ReduceSum", inside, graph.numbers([1]), keepdims=1)
    shift = graph.add("GatherElements", excess, graph.add("Sub", support, graph.numbers(1)), axis=1)
    return graph.add("Max", graph.add("Sub", values, shift), graph.array(np.array(0.0)))


def _kind(classes: npt.NDArray[Any]) -> str:
    """The kind of a tensor of labels."""
    kind = {"i": "int64", "u": "int64", "f": "double", "U": "string", "O": "string", "b": "bool"}.get(
        classes.dtype.kind
    )
    if kind is None:
        raise InputError(f"labels of dtype {classes.dtype} have no kind in ONNX; use integers or text")
    return kind


@dataclass
class _Graph:
    """A graph that is being made: operators take the names of what goes in, and give that of what comes out."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            import onnx  # an extra
        except ImportError:
            raise ImportError("to_onnx needs onnx: pip install -e '.[onnx]' in a clone of kernfed") from None
        self._onnx = onnx

    def add(self, operator: str, *inputs: str, outputs: int = 1, **settings: Any) -> str:
        """Add an operator; returns the name of its first output."""
        if "to" in settings:
            settings["to"] = getattr(self._onnx.TensorProto, settings["to"].upper())
        names = [f"{operator.lower()}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(self._onnx.helper.make_node(operator, list(inputs), names, **settings))
        return names[0]

    def array(self, values: FloatArray) -> str:
        """Name of a constant of doubles."""
        return self._constant(np.ascontiguousarray(values, dtype=np.float64) if values.ndim else np.float64(values))

    def numbers(self, values: Any) -> str:
        """Name of a constant of integers."""
        return self._constant(np.asarray(values, dtype=np.int64))

    def labels(self, classes: npt.NDArray[Any]) -> str:
        """Name of a constant of labels."""
        types = {"int64": np.int64, "double": np.float64, "bool": np.bool_, "string": np.object_}
        return self._constant(classes.astype(types[_kind(classes)]))

    def output(self, name: str, made: str, kind: str, shape: list[Any]) -> None:
        """Let what was made leave under a name."""
        self.nodes.append(self._onnx.helper.make_node("Identity", [made], [name]))
        number = getattr(self._onnx.TensorProto, kind.upper())
        self.outputs.append(self._onnx.helper.make_tensor_value_info(name, number, shape))

    def written(self, width: int, told: Mapping[str, str]) -> bytes:
        """The file, checked."""
        helper = self._onnx.helper
        rows = helper.make_tensor_value_info("rows", self._onnx.TensorProto.DOUBLE, ["n", width])
        graph = helper.make_graph(self.nodes, "kernfed", [rows], self.outputs, self.constants)
        operators = [helper.make_opsetid("", _OPERATORS)]
        model = helper.make_model(graph, producer_name="kernfed", opset_imports=operators, ir_version=_FILE)
        helper.set_model_props(model, dict(told))
        self._onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())

    def _constant(self, values: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name
