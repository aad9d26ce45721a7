"""A quantized model in a torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.quantization.model import QuantizedModel

if TYPE_CHECKING:
    from torch import nn

__all__ = ["to_module"]


def to_module(model: QuantizedModel, module: nn.Module) -> nn.Module:
    """Load the arrays of a quantized model into a module of its architecture.

    Parameters
    ----------
    model : QuantizedModel
    module : torch.nn.Module
        Its parameters are overwritten in place, on their device and in their data type; it computes with floats, what
        the codes stand for.

    Returns
    -------
    torch.nn.Module
        The same module.

    Raises
    ------
    ValueError
        If an array has no parameter of its name and shape, or a trainable parameter has no array; nothing is
        overwritten then.
    """
    import torch  # here, since a model is quantized and read without torch

    parameters = dict(module.named_parameters())
    unknown = [name for name in model.parts if name not in parameters]
    missing = [name for name, value in parameters.items() if value.requires_grad and name not in model.parts]
    for names, where in (
        (unknown, "the file and not of the module"),
        (missing, "the module and not of the file"),
    ):
        if names:
            raise ValueError(
                f"Arrays {', '.join(names[:5])} are of {where}: build the module with the architecture that was "
                "quantized."
            )
    for name, part in model.parts.items():
        if tuple(parameters[name].shape) != part.shape:
            raise ValueError(
                f"Array {name!r} has shape {part.shape}, but the module needs {tuple(parameters[name].shape)}: build "
                "the module with the architecture that was quantized."
            )
    with torch.no_grad():
        for name, array in model.arrays().items():
            parameters[name].copy_(torch.from_numpy(array))
    return module
