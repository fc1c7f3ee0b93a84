"""What OpenAPI says of ``POST /predict``, whose body is read by the gateway itself."""

from typing import Any

from kernfed.serve.rows import ARROW, CSV, JSON

_CELL = {"type": ["number", "string", "boolean", "array", "null"]}
_ROW = {
    "oneOf": [
        {"type": "array", "items": _CELL, "description": "Values in the order of /about's columns."},
        {"type": "object", "additionalProperties": _CELL, "description": "Values by the name of the column."},
    ]
}
_ANSWER = {
    "type": "object",
    "required": ["label"],
    "properties": {
        "label": {"description": "The label, or the value of a regression."},
        "probabilities": {"type": "object", "additionalProperties": {"type": "number"}, "description": "By class."},
        "abstained": {
            "type": "boolean",
            "description": "With --abstain: whether the label is null for want of certainty.",
        },
        "set": {"type": "array", "description": "With --abstain: the classes among which the true one is."},
        "p_value": {"type": ["number", "null"], "description": "With --abstain: small where nothing like it was seen."},
        "site": {"type": ["string", "null"], "description": "The site that came nearest in the label's class."},
        "batch": {"type": ["integer", "null"], "description": "Which of its batches."},
        "part": {"type": ["string", "null"], "description": "Of machines and a head together: which part decided."},
        "score": {"type": ["number", "null"], "description": "The score that decided; smaller is better."},
        "distance": {
            "type": ["number", "null"],
            "description": "Of models with machines: how far the row is from everything known; /about has the unit.",
        },
    },
}
_ERROR = {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}}
_REFUSALS = {
    "400": "The body is not what its content type says.",
    "401": "No token, or one that is not known.",
    "408": "The body did not arrive in time.",
    "413": "More rows or bytes than one request may have.",
    "415": "Another content type.",
    "422": "Rows that the model cannot take.",
    "429": "Too many requests; Retry-After says when.",
    "503": "Too few sites answer, or too many rows wait.",
}

PREDICT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["rows"],
                    "properties": {"rows": {"type": "array", "minItems": 1, "items": _ROW}},
                }
            },
            CSV: {"schema": {"type": "string"}},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        "200": {
            "description": "One answer per row, in order.",
            "content": {
                JSON: {
                    "schema": {
                        "type": "object",
                        "required": ["answers", "sites", "missing"],
                        "properties": {
                            "answers": {"type": "array", "items": _ANSWER},
                            "sites": {"type": "array", "items": {"type": "string"}, "description": "Who answered."},
                            "missing": {
                                "type": "object",
                                "additionalProperties": {"type": "string"},
                                "description": "Sites that did not, with the reason.",
                            },
                        },
                    }
                }
            },
        },
        **{status: {"description": words, "content": _ERROR} for status, words in _REFUSALS.items()},
    },
}
