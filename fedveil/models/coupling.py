"""Layers through which one record's gradient would depend on another record.

Every per-record guarantee bounds what one record adds to a sum of clipped gradients. It is lost when a layer
mixes the records of a batch or carries statistics of earlier records into later gradients.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["refuse_record_coupling"]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def refuse_record_coupling(model: nn.Module) -> None:
    """Refuse a model in which records meet.

    Refused are batch normalisation of every kind (also synchronised, lazy, or without running statistics,
    where it mixes the batch), instance normalisation with running statistics, and any other layer with
    buffers named like running statistics. What a custom layer computes in ``forward`` cannot be seen here;
    :func:`fedveil.models.build_learner` tries that on two records.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on any device.

    Raises
    ------
    ValueError
        Naming the first such layer.
    """
    for name, layer in model.named_modules():
        buffers = dict(layer.named_buffers(recurse=False))
        reason = None
        if isinstance(layer, _BatchNorm):
            reason = "mixes the records of a batch"
        elif any(buffers.get(statistic) is not None for statistic in _STATISTICS):
            reason = "keeps running statistics of the records"
        if reason is not None:
            raise ValueError(
                f"Layer {name or 'at the top'!r} ({type(layer).__name__}) {reason}, so a record's gradient"
                " would depend on other records: use GroupNorm or LayerNorm instead."
            )
