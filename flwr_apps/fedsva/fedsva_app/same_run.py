"""What must be the same when a run is resumed: its code and its data."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from fedveil import wire
from fedveil.config import assembly
from fedveil.config.sites import schema_digest
from fedveil.streams import Streams


def run_facts(problem: assembly.Problem, streams: Streams, code: Mapping[str, str]) -> dict[str, str]:
    """What must be the same when a run is resumed, beside its settings: code and data.

    The data's digest covers public facts (n_i, the test set). In a seeded run it covers the clients' records too, under
    a key drawn from the secret seed: a bare digest of records would tell who knows all but one of them which it is.
    Where every node brings its own records it covers their public description instead, for the server has none.
    """
    test = problem.dataset.test
    digest = blake2b(repr(sorted(problem.examples.items())).encode(), digest_size=16)
    parts = [test.features, test.labels]
    if streams.is_seeded:
        key = streams.stream("data-digest").words(4).tobytes()
        digest = blake2b(repr(sorted(problem.examples.items())).encode(), digest_size=16, key=key)
        parts += [problem.dataset.train.features, problem.dataset.train.labels]
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    if problem.sites is not None:
        digest.update(schema_digest(problem.dataset.schema).encode())
    return {"code": code[wire.SOURCE], "data": digest.hexdigest()}
