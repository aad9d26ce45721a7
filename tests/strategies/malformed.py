"""Ways in which a reply can be wrong: each takes an honest reply of clients 0 and 1 and gives the bad one.

Read through ``runpy`` by the tests beside it: modules of tests do not import each other.
"""

from __future__ import annotations

import io
import json
import pickle  # noqa: TID251  (what a hostile node would send; never loaded)
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedveil import wire

Mutation = Callable[[RecordDict], RecordDict]
ANY: dict[str, Mutation] = {}
"""Wrong in every mode."""
SUM: dict[str, Mutation] = {}
"""Wrong where sums are asked for."""
EACH: dict[str, Mutation] = {}
"""Wrong where each client's update is asked for."""


def arrays(content: RecordDict) -> dict[str, np.ndarray]:
    """The honest arrays."""
    return {name: array.numpy() for name, array in content.array_records[wire.ARRAYS].items()}


def with_record(name: str, record: Any) -> Mutation:
    """Put another record in the place of one."""
    return lambda content: RecordDict({**dict(content), name: record})


def without_record(name: str) -> Mutation:
    """Leave a record out."""
    return lambda content: RecordDict({key: value for key, value in content.items() if key != name})


def with_array(change: Callable[[Array], Array], name: str = "weight") -> Mutation:
    """Change one array as it is on the wire."""

    def mutate(content: RecordDict) -> RecordDict:
        record = dict(content.array_records[wire.ARRAYS])
        return RecordDict({**dict(content), wire.ARRAYS: ArrayRecord({**record, name: change(record[name])})})

    return mutate


def with_values(change: Callable[[np.ndarray], np.ndarray], name: str = "weight") -> Mutation:
    """Change one array's values, its label with them."""
    return with_array(lambda array: Array(np.ascontiguousarray(change(array.numpy()))), name)


def with_data(change: Callable[[Array], bytes]) -> Mutation:
    """Change the bytes and keep the label."""
    return with_array(lambda array: Array(array.dtype, array.shape, array.stype, change(array)))


def with_arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Mutation:
    """Change which arrays there are."""
    return lambda content: RecordDict(
        {**dict(content), wire.ARRAYS: ArrayRecord(change(dict(content.array_records[wire.ARRAYS])))}
    )


def with_ledger(**values: Any) -> Mutation:
    """Change the ledger record; None leaves a key out. Underscores stand for hyphens."""

    def mutate(content: RecordDict) -> RecordDict:
        record = {**dict(content.config_records[wire.LEDGER])}
        record |= {key.replace("_", "-"): value for key, value in values.items()}
        kept = ConfigRecord({key: value for key, value in record.items() if value is not None})
        return RecordDict({**dict(content), wire.LEDGER: kept})

    return mutate


def with_row(**values: Any) -> Mutation:
    """Append a ledger row like the first, with other values; None leaves a key out."""

    def mutate(content: RecordDict) -> RecordDict:
        rows = json.loads(content.config_records[wire.LEDGER][wire.ROWS]) or [ROW]
        row = {key: value for key, value in {**rows[0], **values}.items() if value is not None}
        return with_ledger(rows=json.dumps([*rows, row]).encode())(content)

    return mutate


ROW = {
    "client": 0,
    "round": 1,
    "step": 0,
    "name": "gradient",
    "relation": "record",
    "sensitivity": 0.2,
    "sigma": 0.05,
    "chosen": "fixed",
    "sampling_rate": 1.0,
}


def npy(values: np.ndarray, **options: Any) -> bytes:
    """The bytes of an array file."""
    buffer = io.BytesIO()
    np.save(buffer, values, **options)
    return buffer.getvalue()


def npy_with_header(header: str, body: bytes, version: bytes = b"\x01\x00") -> bytes:
    """An array file with any header at all."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


def npz(array: np.ndarray) -> bytes:
    """An archive of arrays, which numpy loads from the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, array)
    return buffer.getvalue()


def header(array: Array, shape: object) -> str:
    """A header of the right type with any shape."""
    return str({"descr": np.dtype(array.dtype).str, "fortran_order": False, "shape": shape})


ANY |= {
    # records
    "it is empty": lambda content: RecordDict(),
    "it has no arrays": without_record(wire.ARRAYS),
    "it has no metrics": without_record(wire.METRICS),
    "it has no ledger": without_record(wire.LEDGER),
    "it has two array records": with_record("more", ArrayRecord({})),
    "it has two metric records": with_record("more", MetricRecord({})),
    "its ledger has another name": lambda content: RecordDict(
        {("book" if key == wire.LEDGER else key): value for key, value in content.items()}
    ),
    "its ledger is a metric record": with_record(wire.LEDGER, MetricRecord({"rows": 1})),
    # arrays by name
    "it has an empty array record": with_record(wire.ARRAYS, ArrayRecord({})),
    "an array is missing": with_arrays(lambda found: {"weight": found["weight"]}),
    "an array is too much": with_arrays(lambda found: {**found, "surplus": found["bias"]}),
    "an array has another name": with_arrays(
        lambda found: {"weights": found["weight"], "bias": found["bias"]}
    ),
    "arrays are swapped": with_arrays(lambda found: {"bias": found["bias"], "weight": found["weight"]}),
    "arrays have each other's names": with_arrays(
        lambda found: {"weight": found["bias"], "bias": found["weight"]}
    ),
    # shapes
    "an array is transposed": with_values(np.transpose),
    "an array has a dimension more": with_values(lambda values: values[None]),
    "an array is flat": with_values(np.ravel),
    "an array is empty": with_values(lambda values: values[:0]),
    "an array is a number": with_values(lambda values: np.array(values.ravel()[0])),
    "a row is missing": with_values(lambda values: values[:-1]),
    "a row is too much": with_values(lambda values: np.concatenate([values, values[-1:]])),
    "a huge shape is declared": with_array(
        lambda array: Array(array.dtype, (10**9, 10**9), array.stype, array.data)
    ),
    "a negative shape is declared": with_array(
        lambda array: Array(array.dtype, (-2, -3), array.stype, array.data)
    ),
    # types
    "an array is float32": with_values(lambda values: values.astype(np.float32)),
    "an array is int32": with_values(lambda values: values.astype(np.int32)),
    "an array is uint64": with_values(lambda values: values.astype(np.uint64)),
    "an array is complex": with_values(lambda values: values.astype(np.complex128)),
    "an array is boolean": with_values(lambda values: values.astype(np.bool_)),
    "an array has the other byte order": with_values(
        lambda values: values.astype(values.dtype.newbyteorder())
    ),
    "an array is text": with_values(lambda values: values.astype("U30")),
    "an array is a structure": with_values(
        lambda values: np.zeros(values.shape, np.dtype([("x", values.dtype)]))
    ),
    "a type is unknown": with_array(lambda array: Array("unreal", array.shape, array.stype, array.data)),
    "an array is of torch": with_array(
        lambda array: Array(array.dtype, array.shape, "torch.tensor", array.data)
    ),
    # bytes that are not what the label says
    "an array has no bytes": with_data(lambda array: b""),
    "an array is truncated": with_data(lambda array: array.data[:-1]),
    "an array is truncated in its header": with_data(lambda array: array.data[:20]),
    "an array is noise": with_data(lambda array: np.random.default_rng(0).bytes(len(array.data))),
    "an array holds another shape": with_data(lambda array: npy(array.numpy().ravel())),
    "an array holds another type": with_data(lambda array: npy(array.numpy().astype(np.float32))),
    "an array holds another byte order": with_data(
        lambda array: npy(array.numpy().astype(np.dtype(array.dtype).newbyteorder()))
    ),
    "an array is a number in its bytes": with_data(lambda array: npy(np.array(1.0))),
    "an array's bytes declare more memory than there is": with_data(
        lambda array: npy_with_header(header(array, (2**40, 3)), array.data[128:])
    ),
    "an array's bytes declare more memory than can be": with_data(
        lambda array: npy_with_header(header(array, (2**58, 3)), array.data[128:])
    ),
    "an array's bytes declare a shape beyond all numbers": with_data(
        lambda array: npy_with_header(header(array, (2**70, 3)), array.data[128:])
    ),
    "an array's bytes declare a negative shape": with_data(
        lambda array: npy_with_header(header(array, (-2, 3)), array.data[128:])
    ),
    "an array's bytes declare a shape of booleans": with_data(
        lambda array: npy_with_header(header(array, (True, 3)), array.data[128:])
    ),
    "an array is an archive": with_data(lambda array: npz(array.numpy())),
    "an array is a broken archive": with_data(lambda array: b"PK\x03\x04" + array.data),
    "an array is pickled": with_data(lambda array: pickle.dumps(array.numpy())),
    "an array holds objects": with_data(lambda array: npy(array.numpy().astype(object), allow_pickle=True)),
    "an array's header is code": with_data(
        lambda array: npy_with_header("__import__('os').getpid()", array.data[128:])
    ),
    "an array's header is too deep": with_data(lambda array: npy_with_header("(" * 3000, b"")),
    "an array's header is no dictionary": with_data(lambda array: npy_with_header("[1, 2]", b"")),
    "an array's header has a strange type": with_data(
        lambda array: npy_with_header("{'descr': [], 'fortran_order': False, 'shape': (2, 3)}", b"")
    ),
    "an array's file is of the future": with_data(lambda array: b"\x93NUMPY\x09\x00" + array.data[8:]),
    "an array is followed by megabytes": with_data(lambda array: array.data + bytes(2**22)),
    # counts
    "it counts 1e12 records": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 1e12})),
    "it counts a million million records": with_record(
        wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 10**12})
    ),
    "it counts one record more": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 31})),
    "it counts one record less": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 29})),
    "it counts half a record more": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 30.5})),
    "it counts nothing": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: 0})),
    "it counts backwards": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: -30})),
    "it counts nan records": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: float("nan")})),
    "it counts infinitely many": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: float("inf")})),
    "it counts a list": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: [30]})),
    "it counts an empty list": with_record(wire.METRICS, MetricRecord({wire.NUM_EXAMPLES: []})),
    "it does not count": with_record(wire.METRICS, MetricRecord({"num_examples": 30})),
    # code
    "its library is another version": with_ledger(library="0.0.9"),
    "its source is another": with_ledger(source="beef"),
    "its library is missing": with_ledger(library=None),
    "its source is missing": with_ledger(source=None),
    "its source is bytes": with_ledger(source=b"f00d"),
    "its source is a list": with_ledger(source=["f00d"]),
    # clients
    "it names no clients": with_ledger(clients=None),
    "its list of clients is empty": with_ledger(clients=[]),
    "it speaks of an unknown client": with_ledger(clients=[0, 1, 99]),
    "it speaks of the server": with_ledger(clients=[0, 1, -1]),
    "it speaks of another node's client": with_ledger(clients=[0, 1, 2]),
    "it speaks of another client instead": with_ledger(clients=[0, 2]),
    "it names a client twice": with_ledger(clients=[0, 1, 1]),
    "it forgets a client": with_ledger(clients=[0]),
    "a client trained and did not": with_ledger(clients=[0, 1], out_of_budget=[1]),
    "it puts an unknown client out of budget": with_ledger(out_of_budget=[99]),
    "its clients are a text": with_ledger(clients="0, 1"),
    "its clients are texts": with_ledger(clients=["0", "1"]),
    "its clients are bytes": with_ledger(clients=b"\x00\x01"),
    "its clients are floats": with_ledger(clients=[0.0, 1.0]),
    "its clients are booleans": with_ledger(clients=[False, True]),
    "its clients are one number": with_ledger(clients=1),
    "its clients are a very long list": with_ledger(clients=list(range(100_000))),
    "those out of budget are a text": with_ledger(out_of_budget="none"),
    "those out of budget are texts": with_ledger(out_of_budget=[""]),
    "those out of budget are booleans": with_ledger(clients=[0], out_of_budget=[True]),
    # ledger rows
    "it has no rows": with_ledger(rows=None),
    "its rows are a text": with_ledger(rows="[]"),
    "its rows are a list": with_ledger(rows=[b"[]"]),
    "its rows are no JSON": with_ledger(rows=b"rows"),
    "its rows are no UTF-8": with_ledger(rows=b"\xff\xfe\x00"),
    "its rows are empty": with_ledger(rows=b""),
    "its rows are one row": with_ledger(rows=json.dumps(ROW).encode()),
    "its rows are numbers": with_ledger(rows=b"[1, 2]"),
    "its rows are too deep": with_ledger(rows=b"[" * 100_000),
    "its rows are a million nothings": with_ledger(rows=b"[" + b"0," * 1_000_000 + b"0]"),
    "a row is about another node's client": with_row(client=2),
    "a row is about an unknown client": with_row(client=99),
    "a row is about the server": with_row(client=-1),
    "a row is about another round": with_row(round=2),
    "a row is about no round": with_row(round=-1),
    "a row is about a client by true": with_row(client=True),
    "a row is about a client by text": with_row(client="0"),
    "a row lacks its noise": with_row(sigma=None),
    "a row has a key too much": with_row(surplus=1),
    "a row has no noise": with_row(sigma=0.0),
    "a row has negative noise": with_row(sigma=-0.1),
    "a row has noise nan": with_row(sigma=float("nan")),
    "a row has infinite noise": with_row(sigma=float("inf")),
    "a row has a true sensitivity": with_row(sensitivity=True),
    "a row has an unknown relation": with_row(relation="group"),
    "a row has relations": with_row(relation=["record"]),
    "a row has no name": with_row(name=""),
    "a row is sampled at rate 0": with_row(sampling_rate=0.0),
    "a row is sampled at rate 2": with_row(sampling_rate=2.0),
    "a row claims an endless loss": with_row(sensitivity=1e308, sigma=1e-308),
    "a row claims a loss beyond all measure": with_row(sensitivity=1e200, sigma=1.0),
    "a row claims a vanishing loss": with_row(sensitivity=5e-324, sigma=1.0, sampling_rate=0.5),
    "a row was chosen somehow": with_row(chosen="freely"),
}

ANY |= {
    # what is released beside the updates: nothing was asked for
    "it does not say what it released": with_ledger(released=None),
    "what it released is a text": with_ledger(released="{}"),
    "what it released is a list": with_ledger(released=[b"{}"]),
    "what it released is no JSON": with_ledger(released=b"phi"),
    "what it released is no UTF-8": with_ledger(released=b"\xff\xfe\x00"),
    "what it released is empty": with_ledger(released=b""),
    "what it released is a number": with_ledger(released=b"3"),
    "what it released is too deep": with_ledger(released=b"[" * 100_000),
    "it released what nobody asked for": with_ledger(released=b'{"0":{"contribution":[0.1,0.2]}}'),
    "it released a loss": with_ledger(released=b'{"0":{"loss":[0.1]}}'),
    "it released nothing under a name": with_ledger(released=b'{"0":{}}'),
    "it released something of an unknown client": with_ledger(released=b'{"99":{"quantile":[0.5]}}'),
    "it released something of another node's client": with_ledger(released=b'{"2":{"quantile":[0.5]}}'),
}

SUM |= {
    "sums are floats": with_values(lambda values: values.astype(np.float64)),
    "sums are floats under the label of integers": with_data(lambda array: npy(np.full(array.shape, np.nan))),
    "updates are stacked": with_values(lambda values: np.stack([values, values])),
}

EACH |= {
    "updates are sums": with_values(lambda values: (values.sum(axis=0) * 2**32).astype(np.int64)),
    "updates are integers": with_values(lambda values: values.astype(np.int64)),
    "one update is nan": with_values(
        lambda values: np.where(np.arange(values.size).reshape(values.shape) == 4, np.nan, values)
    ),
    "one update is infinite": with_values(lambda values: np.where(values == values.max(), np.inf, values)),
    "one update is minus infinity": with_values(
        lambda values: np.where(values == values.max(), -np.inf, values), "bias"
    ),
    "all updates are nan": with_values(lambda values: np.full_like(values, np.nan)),
}
