"""Quantizers by the names that a user types, such as ``ternary-90`` or ``int4/group-64``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType

from fedveil.quantization.scheme import Scheme, nearest, read_scheme
from fedveil.quantization.sign import Sign
from fedveil.quantization.ternary import AbsmeanTernary, Ternary
from fedveil.quantization.uniform import Uniform

__all__ = ["CLASSES", "SCHEMES", "name_of", "scheme_from_json", "scheme_of"]

SIGN = Sign()
TERNARY_33 = Ternary(0.33)
TERNARY_90 = Ternary(0.9)
ABSMEAN_TERNARY = AbsmeanTernary()
INT2, INT3, INT4, INT8 = (Uniform(bits) for bits in (2, 3, 4, 8))
UINT2, UINT3, UINT4, UINT8 = (Uniform(bits, symmetric=False) for bits in (2, 3, 4, 8))

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            *(SIGN, TERNARY_33, TERNARY_90, ABSMEAN_TERNARY),
            *(INT2, INT3, INT4, INT8),
            *(UINT2, UINT3, UINT4, UINT8),
        )
    }
)
"""FedVeil's own quantizers by name, one scale a tensor; ``ternary-<percent>`` has any other sparsity."""

CLASSES: tuple[type[Scheme], ...] = (Sign, Ternary, AbsmeanTernary, Uniform)
"""The classes of FedVeil's own quantizers."""

_TERNARY = re.compile(r"ternary-(\d+(?:\.\d+)?(?:e-?\d{1,3})?)", re.ASCII)
_GROUP = re.compile(r"group-([1-9]\d{0,9})", re.ASCII)


def scheme_of(name: str | Scheme, others: Mapping[str, Scheme] | None = None) -> Scheme:
    """The scheme that a name stands for.

    Parameters
    ----------
    name : str or Scheme
        ``sign``, ``ternary-<percent>`` (percent of zeros, decimals allowed), ``absmean-ternary``, ``int<b>``
        (symmetric) or ``uint<b>`` (asymmetric) with b = 2, 3, 4 or 8: one scale a tensor. With ``/channel`` one a
        channel, with ``/group-<n>`` one for n consecutive weights of a channel. A scheme is given back as it is.
    others : mapping of str to Scheme, optional
        Further names, of plugins. They may have a granularity of their own, or get one by the same suffixes.

    Raises
    ------
    ValueError
        If the name is not known, the nearest known one is named; or if what a plugin gives is no scheme.
    """
    if isinstance(name, Scheme):
        return name
    known = {**(others or {}), **SCHEMES}
    if not isinstance(name, str):
        raise ValueError(
            f"A scheme is given by its name, or as a Scheme, got {type(name).__name__}: {_usage(known)}."
        )
    base, slash, suffix = name.partition("/")
    percent = _TERNARY.fullmatch(base)
    group = _GROUP.fullmatch(suffix)
    if (base not in known and not percent) or (slash and suffix != "channel" and not group):
        raise ValueError(
            f"scheme {name!r} is not known: give {_usage(known)}{_nearest(base, suffix, known)}."
        )
    if base in known:
        scheme = known[base]
        if not isinstance(scheme, Scheme):
            raise ValueError(
                f"scheme {base!r} of a plugin is of type {type(scheme).__name__}: a plugin gives an instance of a "
                "class that inherits from fedveil.quantization.Scheme."
            )
    else:
        share = Decimal(percent[1]).scaleb(-2) if percent else Decimal(0)
        if not 0 < float(share) < 1:
            raise ValueError(
                f"scheme {name!r} is not allowed: the percentage of zeros is above 0 and below 100."
            )
        scheme = Ternary(float(share))
    if not slash:
        return scheme
    if group:
        return replace(scheme, granularity="group", group_size=int(group[1]))
    return replace(scheme, granularity="channel", group_size=None)


def name_of(scheme: Scheme) -> str:
    """The name of a scheme, from which :func:`scheme_of` gives an equal one."""
    return scheme_of(scheme).name


def scheme_from_json(text: str, others: tuple[type[Scheme], ...] = ()) -> Scheme:
    """Read what :meth:`Scheme.to_json` wrote, whichever scheme it was.

    Parameters
    ----------
    text : str
    others : tuple of Scheme classes, optional
        Further classes, of plugins.

    Raises
    ------
    ValueError
        If it is not JSON, an unknown scheme, or a setting is unknown, missing or not allowed.
    """
    return read_scheme(text, (*CLASSES, *others))


def _usage(known: Mapping[str, Scheme]) -> str:
    fixed = [one for one in known if not _TERNARY.fullmatch(one)]
    return f"ternary-<percent>, {', '.join(fixed)}, each also with /channel or /group-<size>"


def _nearest(base: str, suffix: str, known: Mapping[str, Scheme]) -> str:
    """What was probably meant: the nearest name, with the suffix as given if it is one."""
    written = f"{base}/{suffix}" if suffix else base
    suffixes = ["", "/channel", f"/{suffix if _GROUP.fullmatch(suffix) else 'group-64'}"]
    typed = [base] if _TERNARY.fullmatch(base) else []
    return nearest(written, [one + end for one in (*typed, *known) for end in suffixes])
