"""Numbers in JSON: themselves to the bit, and no token that JSON does not have."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.strategies.json_number import json_number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_finite_number_keeps_every_bit(value):
    assert math.copysign(1.0, json.loads(json.dumps(json_number(value)))) == math.copysign(1.0, value)
    assert json.loads(json.dumps(json_number(value), allow_nan=False)) == value


@pytest.mark.parametrize("kind", [float, np.float64])
@pytest.mark.parametrize(("value", "told"), [(math.nan, None), (math.inf, "inf"), (-math.inf, "-inf")])
def test_what_json_lacks_is_null_or_a_word_with_its_sign(kind, value, told):
    assert json_number(kind(value)) == told
