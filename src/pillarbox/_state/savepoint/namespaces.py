"""The column ``namespace`` of a table: JSON of the namespace that a row is of; null: the row is of the key itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._state.keys.addresses import OPERATOR

_OWN_TEXT = json.dumps(OPERATOR[1])


def is_namespaced(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is of a namespace."""
    found: npt.NDArray[np.bool_] = batch.column("namespace").is_valid().to_numpy(zero_copy_only=False)
    return found


def is_own(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is one of the operator's own."""
    of_no_key: npt.NDArray[np.bool_] = batch.column("key_group").is_null().to_numpy(zero_copy_only=False)
    return of_no_key & has_own_namespace(batch)


def has_own_namespace(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each row whether its namespace is that of the operator's own rows, which a key may have as well."""
    found: npt.NDArray[np.bool_] = batch.column("namespace").to_numpy(zero_copy_only=False) == _OWN_TEXT
    return found


def texts_of(namespaces: Sequence[Any]) -> list[str]:
    """Return namespaces as JSON."""
    known: dict[Any, str] = {}
    return [known.get(each) or known.setdefault(each, json.dumps(each, separators=(",", ":"))) for each in namespaces]


def namespace_of(text: str) -> Any:
    """Return the namespace that JSON says."""
    return _plain(json.loads(text))


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list) else value
