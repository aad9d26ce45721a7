"""Quantizers: weights to integer codes and scales, packed at their true size, and back."""

from fedveil.quantization.blocks import Blocks, Granularity
from fedveil.quantization.damaged import DamagedFile
from fedveil.quantization.file import decode_quantized, encode_model, encode_quantized
from fedveil.quantization.model import (
    Filter,
    QuantizedModel,
    is_quantizable,
    quantize_model,
    theoretical_bits,
)
from fedveil.quantization.module import to_module
from fedveil.quantization.names import SCHEMES, name_of, scheme_from_json, scheme_of
from fedveil.quantization.packing import Alphabet
from fedveil.quantization.quantize import (
    Quantized,
    dequantize,
    dequantize_all,
    encode_with,
    pack,
    quantize,
    unpack,
)
from fedveil.quantization.scheme import Grid, Scheme
from fedveil.quantization.sign import Sign
from fedveil.quantization.ternary import AbsmeanTernary, Ternary
from fedveil.quantization.uniform import Uniform

__all__ = [
    "SCHEMES",
    "AbsmeanTernary",
    "Alphabet",
    "Blocks",
    "DamagedFile",
    "Filter",
    "Granularity",
    "Grid",
    "Quantized",
    "QuantizedModel",
    "Scheme",
    "Sign",
    "Ternary",
    "Uniform",
    "decode_quantized",
    "dequantize",
    "dequantize_all",
    "encode_model",
    "encode_quantized",
    "encode_with",
    "is_quantizable",
    "name_of",
    "pack",
    "quantize",
    "quantize_model",
    "scheme_from_json",
    "scheme_of",
    "theoretical_bits",
    "to_module",
    "unpack",
]
