"""Detectors: pure functions from what is known of a run to findings with their evidence, or to silence."""
