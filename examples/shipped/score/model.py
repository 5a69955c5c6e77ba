"""A small model: logistic regression, trained by Newton's method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def train(features: Sequence[Sequence[float]], labels: Sequence[int], steps: int = 20) -> list[float]:
    """Return the weights of the features, followed by the constant."""
    inputs, target = _with_constant(features), np.asarray(labels, dtype=float)
    weights = np.zeros(inputs.shape[1])
    for _ in range(steps):
        chance = _chance(inputs @ weights)
        curvature = inputs.T @ (inputs * (chance * (1 - chance))[:, None])
        weights += np.linalg.solve(curvature, inputs.T @ (target - chance))
    return [float(weight) for weight in weights]


def predict(weights: Sequence[Sequence[float]], features: Sequence[Sequence[float]]) -> list[float]:
    """Return each record's probability of fraud. Each record has its own weights."""
    return [float(chance) for chance in _chance((_with_constant(features) * np.asarray(weights)).sum(axis=1))]


def _with_constant(features: Sequence[Sequence[float]]) -> Any:
    return np.column_stack([np.asarray(features, dtype=float), np.ones(len(features))])


def _chance(score: Any) -> Any:
    return 1 / (1 + np.exp(-score))
