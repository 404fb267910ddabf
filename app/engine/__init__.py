"""Inference: the only place that runs the model."""
