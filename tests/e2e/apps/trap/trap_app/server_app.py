"""A plain FedAvg server, without any care of its own, that fails in the way the run's ``mode`` names."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Noting(FedAvg):
    """FedAvg that remembers where its clients ran."""

    folders: tuple[str, ...] = ()

    def aggregate_train(self, server_round, replies):
        """Note the folders, then average."""
        replies = list(replies)
        self.folders += tuple(
            str(reply.content["where"]["folder"]) for reply in replies if reply.has_content()
        )
        for reply in replies:
            if reply.has_content():
                reply.content.pop("where")
        return super().aggregate_train(server_round, replies)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average for a few rounds and note what was found."""
    mode, note = str(context.run_config["mode"]), str(context.run_config["note"])
    if mode == "server-raises":
        raise ValueError("the server always fails")
    at_start = len(list(grid.get_node_ids()))
    while not list(grid.get_node_ids()):
        time.sleep(0.05)
    print("round loop starts", flush=True)
    strategy = Noting(fraction_evaluate=0.0, min_available_nodes=2)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(2)]),
        num_rounds=int(context.run_config["num-server-rounds"]),
        timeout=30.0,
    )
    if note:
        model = [float(value) for array in result.arrays.to_numpy_ndarrays() for value in array]
        found = {
            "model": model,
            "nodes_at_start": at_start,
            "client_folders": list(strategy.folders),
            "server_folder": os.getcwd(),
            "path": sys.path,
            "flwr_home": os.environ.get("FLWR_HOME"),
            "installs": os.environ.get("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION") != "1",
        }
        Path(note).write_text(json.dumps(found))
