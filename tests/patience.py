"""The one limit of waits in tests."""

from __future__ import annotations

HANG_S = 120.0
"""Limit in seconds that only ends what hangs. It says nothing about speed."""
