"""Detectors: pure functions from what is known of a run to findings with their evidence, or to silence."""

from .view import KEPT, Detector, View

__all__ = ["KEPT", "Detector", "View"]
