"""Whether a ledger row from the wire is the one that the server's own plan of a release has."""

from __future__ import annotations

from dataclasses import replace

from fedveil.privacy import Release

__all__ = ["same_release", "told"]

_LAST_BITS = 1e-12
"""Relative difference between machines in what both compute from the same settings; calibration rounds by more."""


def same_release(given: Release, planned: Release) -> bool:
    """Whether a row is the planned one, but for the last bits of what was computed on another kind of machine."""
    close = (
        abs(getattr(given, name) - getattr(planned, name)) <= _LAST_BITS * getattr(planned, name)
        for name in ("sensitivity", "sigma")
    )
    return all(close) and replace(given, sensitivity=planned.sensitivity, sigma=planned.sigma) == planned


def told(row: Release) -> str:
    """A row in words."""
    return (
        f"{row.name!r} of round {row.round}, relation {row.relation!r}, sensitivity {row.sensitivity!r}, sigma "
        f"{row.sigma!r}"
    )
