"""Inference: the only place that runs the model.

Importing any module of this package sets up the platform first: on Linux the tuned BLAS must be in
the process before MLX is.
"""

from app.engine import platform

__all__ = ["platform"]
