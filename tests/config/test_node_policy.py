"""Where a node's policy lies, what happens when it cannot be used, and which runs fit beside those before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedveil.artifacts import LifetimeExceeded, NodeLedger
from fedveil.clients.policy import BadPolicy, PolicyRefusal
from fedveil.config import FedSVAConfig
from fedveil.config.assembly import load_problem
from fedveil.config.node_policy import admit_run, check_loaded, limits_of, node_policy, policy_path
from fedveil.config.sites import SiteData
from fedveil.privacy import Release, gaussian_mu

TOTAL = "delta = 1e-5\nepsilon = {record = 1.0}\n"


def config(**settings: Any) -> FedSVAConfig:
    return FedSVAConfig.from_run_config({"dataset": "digits", "calibration": "uniform", **settings})


def admit(settings: FedSVAConfig | None = None, run: str | None = None) -> Any:
    return admit_run(settings or config(), run=run, node=0, simulated=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path))
    monkeypatch.delenv("FEDVEIL_POLICY", raising=False)
    return tmp_path


def spend(home: Path, run: str, epsilon: float, share: float = 1.0) -> None:
    row = Release(0, 1, 0, "gradient", "record", gaussian_mu(epsilon, 1e-5) * share**0.5, 1.0)
    NodeLedger(home / "node-ledger.sqlite").record(run, {0: "d"}, [row], replay=False)


def test_the_policy_is_the_file_of_the_variable_else_that_in_the_folder_else_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy_path() is None
    assert node_policy() is None
    (home / "policy.toml").write_text('apps = ["fedsva"]')
    assert policy_path() == home / "policy.toml"
    (home / "other.toml").write_text('apps = ["modulated"]')
    monkeypatch.setenv("FEDVEIL_POLICY", str(home / "other.toml"))
    policy = node_policy()
    assert policy is not None
    assert policy.apps == ("modulated",)


def test_a_named_policy_that_is_not_there_is_no_freedom(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "policy.toml").write_text("")
    monkeypatch.setenv("FEDVEIL_POLICY", str(home / "none.toml"))
    with pytest.raises(BadPolicy, match="cannot be read"):
        node_policy()
    with pytest.raises(PolicyRefusal, match="cannot be used, so it serves no run"):
        admit()


def test_a_link_to_nowhere_and_an_unreadable_file_are_no_freedom(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "policy.toml").symlink_to(home / "gone")
    with pytest.raises(PolicyRefusal) as refused:
        admit()
    assert str(home) not in str(refused.value)  # the server learns nothing of the node's folders,
    assert str(home) in capsys.readouterr().out  # and the node's owner reads what is wrong

    def deny(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", deny)
    with pytest.raises(PolicyRefusal):
        admit()


def test_the_policy_is_read_anew_for_every_request(home: Path) -> None:
    (home / "policy.toml").write_text('apps = ["fedsva"]')
    admit()
    (home / "policy.toml").write_text('apps = ["modulated"]')
    with pytest.raises(PolicyRefusal, match="rule 'apps'"):
        admit()


def test_a_node_without_a_policy_serves_every_run_but_none_without_noise() -> None:
    assert admit() is None
    assert limits_of(None) == {}
    with pytest.raises(PolicyRefusal, match=r"rule 'privacy'.*this node has none"):
        admit(config(privacy="none"))


UNPROVEN = {"calibration": "paper", "contribution-release": "none", "private-attributes": "0:4,0:8"}


def test_noise_that_proves_nothing_is_served_only_where_the_word_is_listed(home: Path) -> None:
    run = config(**UNPROVEN)
    words = r"rule 'privacy'.*proves nothing.*\"local\" and \"unproven\""
    with pytest.raises(PolicyRefusal, match=words + ".*this node has none"):
        admit(run)
    for text in ("", 'privacy = ["local"]', 'privacy = ["local", "central", "none"]'):
        (home / "policy.toml").write_text(text)
        for name in (None, "run"):
            with pytest.raises(PolicyRefusal, match=words):
                admit(run, name)
    (home / "policy.toml").write_text('privacy = ["unproven"]')
    with pytest.raises(PolicyRefusal, match="asks for 'local'; allowed: unproven"):
        admit(run)
    (home / "policy.toml").write_text('privacy = ["local", "unproven"]')
    admit(run)
    admit(run, "run")
    admit(config(), "another")
    # its rows are this node's own, and have no bound
    assert NodeLedger(home / "node-ledger.sqlite").spent_by_run("record") == {}
    assert admit_run(run, run="run", node=0, simulated=True) is None


def test_noise_that_proves_nothing_is_refused_by_every_total(home: Path) -> None:
    (home / "policy.toml").write_text('privacy = ["local", "unproven"]\n' + TOTAL)
    with pytest.raises(PolicyRefusal, match=r"rule 'epsilon\.record'.*no bound under the record relation"):
        admit(config(**UNPROVEN))


def test_the_policy_that_a_deployment_begins_with_refuses_noise_that_proves_nothing(home: Path) -> None:
    written = Path(__file__).parents[2] / "deploy" / "policy.toml"
    (home / "policy.toml").write_text(written.read_text())
    admit(config())
    with pytest.raises(PolicyRefusal, match="proves nothing"):
        admit(config(**UNPROVEN))


def test_the_whole_of_a_run_must_fit_before_its_first_release(home: Path) -> None:
    (home / "policy.toml").write_text(TOTAL)
    admit()
    admit(run="first")
    spend(home, "first", 0.5)
    for run in (None, "second"):
        with pytest.raises(PolicyRefusal, match=r"epsilon\.record.*may cost epsilon 1 at delta 1e-05"):
            admit(run=run)
        admit(config(epsilon=0.5), run)
    for _ in range(20):  # nothing but the file remembers
        with pytest.raises(PolicyRefusal):
            admit(run="renamed")


def test_a_run_that_goes_on_is_not_counted_twice(home: Path) -> None:
    (home / "policy.toml").write_text(TOTAL)
    spend(home, "first", 1.0, share=0.9)
    admit(run="first")
    admit(config(resume="/runs/first"))  # asked who is here: the name comes with the first request
    with pytest.raises(PolicyRefusal):
        admit(config(resume="/runs/first"), "second")


def test_a_ledger_that_was_tightened_stops_runs_under_way_in_the_transaction(home: Path) -> None:
    spend(home, "first", 1.0, share=0.5)
    (home / "policy.toml").write_text(TOTAL)
    policy = admit(run="first")
    ledger = NodeLedger(home / "node-ledger.sqlite", limits=limits_of(policy))
    row = Release(0, 2, 0, "gradient", "record", gaussian_mu(1.0, 1e-5), 1.0)
    with pytest.raises(LifetimeExceeded):
        ledger.record("first", {0: "d"}, [row], replay=False)


def test_a_run_without_rows_of_its_own_is_booked_once_it_may_release(home: Path) -> None:
    (home / "policy.toml").write_text('privacy = ["none", "central"]')
    admit(config(privacy="none"))
    assert not (home / "node-ledger.sqlite").exists()
    for _ in range(3):
        admit(config(privacy="none"), "bare")
        admit(config(privacy="central"), "trusting")
    ledger = NodeLedger(home / "node-ledger.sqlite")
    assert ledger.spent_by_run("record") == {"bare": float("inf"), "trusting": float("inf")}
    assert float(ledger.spent_by_run("client")["trusting"]) == pytest.approx(gaussian_mu(1.0, 1e-5) ** 2)


def test_columns_are_known_from_the_public_description_before_any_record(home: Path) -> None:
    (home / "policy.toml").write_text('columns = ["age", "label"]')
    text = "[columns.{}]\nlow = 0\nhigh = 1\nbaseline = 0\n"
    own = {"dataset": "csv", "data-path": str(home / "nowhere.csv"), "target": "label", "partition": "iid"}
    schema = Path(f"{own['data-path']}.schema.toml")
    schema.write_text(text.format("age") + '[columns.label]\nclasses = ["a", "b"]\n')
    admit(config(**own))
    schema.write_text(
        text.format("age") + text.format("postcode") + '[columns.label]\nclasses = ["a", "b"]\n'
    )
    with pytest.raises(PolicyRefusal, match=r"rule 'columns'.*uses 'postcode'; allowed: age, label"):
        admit(config(**own))
    schema.write_text('ignore = ["postcode"]\n' + schema.read_text())
    admit(config(**own))


def test_a_simulated_node_asks_no_policy(home: Path) -> None:
    (home / "policy.toml").write_text("nonsense")
    assert admit_run(config(privacy="none"), run="run", node=0, simulated=True) is None
    assert not (home / "node-ledger.sqlite").exists()


@pytest.mark.parametrize("policy", ["", TOTAL])
def test_a_run_s_name_stands_for_one_way_of_numbering_clients(home: Path, policy: str) -> None:
    """Under another public seed the same number is another record, which has nothing spent yet."""
    (home / "policy.toml").write_text(policy)
    admit(run="run")
    admit(run="run")
    admit(config(**{"round-timeout": 5.0}), run="run")  # nothing that is computed
    for other in ({"data-seed": 1}, {"num-clients": 3}, {"partition": "dirichlet"}, {"num-server-rounds": 3}):
        with pytest.raises(ValueError, match=r"the configuration of run 'run' was another before"):
            admit(config(**other), run="run")
        admit(config(**other), run=f"run with {other}")
    admit(run="run")


def test_a_site_keeps_its_number_through_a_run(home: Path) -> None:
    """Its rows are filed under that number: under another its records would have a whole budget again."""
    own = {"dataset": "csv", "target": "label", "partition": "sites", "num-clients": 3}
    own |= {"data-schema": "/x/schema.toml", "test-path": "/x/test.csv"}
    site = SiteData("/data/records.csv", "")

    def ask(node: int, settings: FedSVAConfig, run: str = "run") -> Any:
        return admit_run(settings, run=run, node=node, simulated=False, site=site)

    ask(1, config(**own))
    ask(1, config(**own))
    with pytest.raises(ValueError, match=r"^the partition-id of run 'run' was another"):
        ask(2, config(**own))
    admit_run(config(**own), run="run", node=2, simulated=False, site=SiteData("/data/other.csv", ""))
    ask(2, config(**own), run="another run")
    admit_run(config(), run="shares", node=1, simulated=False)  # there a number means the same at every node
    admit_run(config(), run="shares", node=2, simulated=False)


def test_what_no_description_tells_is_checked_once_the_records_are_loaded(home: Path) -> None:
    (home / "policy.toml").write_text('columns = ["row 0, column 0"]\nmin-records = 5')
    policy = admit()  # a data set of its own: nothing is known before it is loaded
    digits = load_problem(config()).dataset.schema
    with pytest.raises(PolicyRefusal, match="rule 'columns'"):
        check_loaded(policy, {"client 0": 5}, digits)
    check_loaded(None, {"client 0": 0}, digits)
    (home / "policy.toml").write_text("min-records = 5")
    check_loaded(admit(), {"client 0": 5}, digits)
    with pytest.raises(PolicyRefusal, match="rule 'min-records'"):
        check_loaded(admit(), {"client 0": 5, "client 1": 4}, digits)
