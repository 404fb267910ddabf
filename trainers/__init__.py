"""The training algorithms: MLX and NumPy over small protocols."""
