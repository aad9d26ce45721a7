"""Rounds without a reply, read from the log of Flower's own strategies."""

from pathlib import Path

from fedveil.run.log_watch import LogWatch, unanswered, without_colours

LOG = """\
\x1b[92mINFO \x1b[0m:      [ROUND 1/3]
\x1b[92mINFO \x1b[0m:      aggregate_train: Received 2 results and 0 failures
\x1b[92mINFO \x1b[0m:      aggregate_evaluate: Received 0 results and 2 failures
\x1b[92mINFO \x1b[0m:      [ROUND 2/3]
\x1b[92mINFO \x1b[0m:      aggregate_train: Received 0 results and 2 failures
\x1b[92mINFO \x1b[0m:      \t> Received error in reply from node 17: <class 'ValueError'>:<'no'>
\x1b[92mINFO \x1b[0m:      [ROUND 3/3]
\x1b[92mINFO \x1b[0m:      aggregate_train: Received 1 results and 1 failures
"""


def test_a_training_round_that_nobody_answered_is_named_with_the_reason():
    watch = LogWatch()
    for line in LOG.splitlines(keepends=True):
        watch.read(line)
    assert watch.problem == "no client gave a good reply in round 2: <class 'ValueError'>:<'no'>"


def test_the_reason_is_found_in_rays_account_of_it():
    watch = LogWatch()
    for line in (
        "INFO :      [ROUND 1/3]",
        "INFO :      aggregate_train: Received 0 results and 2 failures",
        "INFO :      \t> Received error in reply from node 1: <class 'ray.exceptions.RayTaskError'>:<'ray::run()",
        "ValueError: no",
        "Exception ClientAppException occurred. Message: no'>",
        "INFO :      ",
    ):
        watch.read(line)
    assert watch.problem == "no client gave a good reply in round 1: no"


def test_a_good_log_has_no_problem():
    watch = LogWatch()
    for line in LOG.splitlines(keepends=True)[:3]:
        watch.read(line)
    assert watch.problem == ""


def test_flowers_strategy_still_writes_the_words_looked_for():
    import flwr.serverapp.strategy.fedavg as fedavg

    source = Path(fedavg.__file__).read_text()
    assert '"%s: Received %s results and %s failures"' in source
    assert "Received error in reply from node %d: %s" in source


def test_many_rounds_are_not_all_listed():
    assert unanswered(["1", "2", "3", "4"], "") == "no client gave a good reply in rounds 1, 2, 3 and more"
    assert unanswered([""], "boom") == "no client gave a good reply in any round: boom"


def test_colours_are_taken_out():
    assert without_colours("\x1b[92mINFO \x1b[0m:") == "INFO :"
