"""Domain of a number: every public function of this package checks its arguments here.

Each check returns the plain Python value, or raises a ValueError of one sentence that says what was
given and what is allowed.
"""

import contextlib
import difflib
import math
import reprlib
import sys
import warnings
from numbers import Integral, Real


class WeakDelta(UserWarning):
    """A delta above 1/n: publishing one whole record out of n, picked at random, would satisfy it."""


def finite(name: str, value: object, *, allowed: str = "a finite number") -> float:
    """Return `value` as a float; refuse bools, text, NaN and infinities."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an int or Fraction beyond the largest float
            number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def positive(name: str, value: object) -> float:
    """Return `value` as a float in (0, inf)."""
    allowed = "a finite number above 0"
    number = finite(name, value, allowed=allowed)
    if number <= 0:
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def non_negative(name: str, value: object) -> float:
    """Return `value` as a float in [0, inf)."""
    allowed = "a finite number of at least 0"
    number = finite(name, value, allowed=allowed)
    if number < 0:
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def probability(name: str, value: object) -> float:
    """Return `value` as a float strictly between 0 and 1; below the smallest normal float nothing is exact."""
    allowed = f"a number strictly between 0 and 1 (and at least {sys.float_info.min:.3g})"
    number = finite(name, value, allowed=allowed)
    if not sys.float_info.min <= number < 1:
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def rate(name: str, value: object) -> float:
    """Return `value` as a float in (0, 1]."""
    allowed = "a number above 0 and at most 1"
    number = finite(name, value, allowed=allowed)
    if not 0 < number <= 1:
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def share(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1]."""
    allowed = "a number from 0 to 1"
    number = finite(name, value, allowed=allowed)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} = {reprlib.repr(value)} is not allowed: give {allowed}.")
    return number


def whole(name: str, value: object, *, minimum: int) -> int:
    """Return `value` as an int of at least `minimum` that a float holds exactly."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not minimum <= int(value) <= 2**53:
        raise ValueError(
            f"{name} = {reprlib.repr(value)} is not allowed: "
            f"give a whole number of at least {minimum} and at most 2^53."
        )
    return int(value)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a `value` that is not one of the `allowed` words, naming the nearest."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"{name} = {reprlib.repr(value)} is not allowed: give one of {', '.join(allowed)}{hint}."
    )


def check_attribute_clip_norm(attribute_clip_norm: float, clip_norm: float) -> float:
    """Return C_p as a float in (0, C]; a larger one protects no better than C itself."""
    checked = positive("attribute_clip_norm", attribute_clip_norm)
    if checked > clip_norm:
        raise ValueError(
            f"attribute_clip_norm = {checked:g} is above clip_norm = {clip_norm:g}: "
            "give a number above 0 and at most clip_norm."
        )
    return checked


def warn_weak_delta(delta: float, num_records: int) -> None:
    """Warn with `WeakDelta`, naming n, when delta > 1/n."""
    if delta * num_records > 1:
        warnings.warn(
            f"delta = {delta:g} is above 1/n for n = {num_records} records: publishing one record chosen "
            f"at random would satisfy it, so choose delta well below {1 / num_records:.3g}.",
            WeakDelta,
            stacklevel=3,
        )
