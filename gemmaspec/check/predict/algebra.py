"""The little linear algebra that predictions need: a scalar product, and equations solved by Cholesky's factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

Vector = Sequence[float]


def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return float(sum(map(mul, a, b)))


def products(rows: Sequence[Vector]) -> list[list[float]]:
    """Return the matrix of the scalar products of each row with each."""
    return [_with_each(row, rows) for row in rows]


def lower_products(rows: Sequence[Vector]) -> list[list[float]]:
    """Return the lower triangle of that matrix."""
    return [_with_each(row, rows[: number + 1]) for number, row in enumerate(rows)]


def _with_each(row: Vector, others: Sequence[Vector]) -> list[float]:
    return [dot(row, other) for other in others]


class Cholesky:
    """Return L with L Lᵀ = matrix; `matrix` is symmetric and positive definite, and its lower triangle is enough."""

    def __init__(self, matrix: Sequence[Vector]) -> None:
        self._rows: list[list[float]] = []
        for i, source in enumerate(matrix):
            row: list[float] = []
            for j in range(i + 1):
                known = sum(map(mul, row, self._rows[j] if j < i else row))
                rest = source[j] - known
                row.append(math.sqrt(max(rest, 1e-18)) if i == j else rest / self._rows[j][j])
            self._rows.append(row)

    @property
    def log_determinant(self) -> float:
        """Return the logarithm of the matrix's determinant."""
        return 2 * sum(math.log(row[-1]) for row in self._rows)

    def half(self, right: Vector) -> list[float]:
        """Return x with L x = right."""
        half: list[float] = []
        for row, value in zip(self._rows, right, strict=True):
            half.append((value - sum(map(mul, row, half))) / row[-1])
        return half

    def solve(self, right: Vector) -> list[float]:
        """Return x with matrix x = right."""
        solution = self.half(right)
        for i in reversed(range(len(solution))):
            solution[i] /= self._rows[i][i]
            for j in range(i):
                solution[j] -= self._rows[i][j] * solution[i]
        return solution
