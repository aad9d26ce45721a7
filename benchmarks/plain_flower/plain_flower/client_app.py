"""A node: it trains when it is asked to train, and evaluates when it is asked to evaluate."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain_flower.task import Records, load, network
from plain_flower.task import test as test_model
from plain_flower.task import train as train_model
from torch import nn

app = ClientApp()


def received(message: Message, context: Context) -> tuple[nn.Module, Records, Records]:
    """The model that the server sent, and this node's records."""
    model = network(int(context.run_config["hidden-units"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, *load(Path(str(context.node_config["data-path"])))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this node's records."""
    model, records, _ = received(message, context)
    steps, rate = int(context.run_config["local-steps"]), float(context.run_config["learning-rate"])
    loss = train_model(model, records, steps, rate)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(records[1])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on records that this node did not train on."""
    model, _, records = received(message, context)
    loss, accuracy = test_model(model, records)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(records[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
