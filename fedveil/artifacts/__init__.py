"""What a run leaves on disk: its folder, its checkpoint, its ledger; and each node's own ledger."""

from fedveil.artifacts.arrays_file import DamagedFile, decode_arrays, encode_arrays
from fedveil.artifacts.atomic import WriteFailed, write_bytes, write_text
from fedveil.artifacts.checkpoint import Checkpoint
from fedveil.artifacts.cohort_table import cohort_table
from fedveil.artifacts.config_file import ConfigMismatch, differing_keys, require_same_config
from fedveil.artifacts.ledger_table import (
    ledger_table,
    releases_of,
    sorted_ledger,
    table_bytes,
    table_from_bytes,
)
from fedveil.artifacts.node_ledger import (
    BindingMismatch,
    LifetimeExceeded,
    NodeLedger,
    Past,
    ReplayMismatch,
)
from fedveil.artifacts.node_tables import NODE_LEDGER
from fedveil.artifacts.run_folder import RunFolder, RunFolderError

__all__ = [
    "NODE_LEDGER",
    "BindingMismatch",
    "Checkpoint",
    "ConfigMismatch",
    "DamagedFile",
    "LifetimeExceeded",
    "NodeLedger",
    "Past",
    "ReplayMismatch",
    "RunFolder",
    "RunFolderError",
    "WriteFailed",
    "cohort_table",
    "decode_arrays",
    "differing_keys",
    "encode_arrays",
    "ledger_table",
    "releases_of",
    "require_same_config",
    "sorted_ledger",
    "table_bytes",
    "table_from_bytes",
    "write_bytes",
    "write_text",
]
