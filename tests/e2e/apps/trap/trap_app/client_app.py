"""A client that fails in the way the run's ``mode`` names."""

import os
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

STEP = 1.0  # what a client adds to the model: says whose code ran

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add STEP to the model, or fail."""
    mode = context.run_config["mode"]
    if mode == "clients-raise":
        raise ValueError("this client always fails")
    if mode == "exit":
        raise SystemExit(3)
    if mode == "none":
        return None
    if mode == "slow":
        time.sleep(300)
    values = message.content["arrays"].to_numpy_ndarrays()[0] + STEP
    if mode == "nan":
        values = values * np.nan
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord([values]),
                "metrics": MetricRecord({"num-examples": 1, "step": STEP}),
                "where": ConfigRecord({"folder": os.getcwd(), "file": __file__}),
            }
        ),
        reply_to=message,
    )
