"""deploy/keys.sh: certificates that verify, keys that are private, and nothing made twice."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
)


def keys(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script for a deployment in this folder."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "FEDVEIL_DEPLOYMENT": str(folder / "deployment"),
        "FEDVEIL_ENV": str(folder / "compose.env"),
        **more,
    }
    return subprocess.run(
        [ROOT / "deploy/keys.sh", *words], env=env, cwd=folder, capture_output=True, text=True, check=False
    )


def said_by_openssl(*words: str | Path) -> str:
    return subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False).stdout


def public_half(private: Path) -> list[str]:
    """Kind and number of the public key that belongs to a private one."""
    said = subprocess.run(["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True)
    return said.stdout.split()[:2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment of two nodes that sites reach as learn.example.org and 192.0.2.7."""
    made = tmp_path_factory.mktemp("keys")
    result = keys(made, "local", "2", "learn.example.org", "192.0.2.7")
    assert result.returncode == 0, result.stderr
    assert "docker compose up" in result.stdout
    return made


def test_a_second_call_changes_no_file(folder: Path):
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = contents()
    assert keys(folder, "local", "2", "other.example.org").returncode == 0
    assert contents() == before


def test_private_keys_and_secrets_are_readable_by_their_owner_only(folder: Path):
    private = [path for path in folder.rglob("*") if path.suffix in (".key", ".secret", ".pem")]
    assert (
        len(private) == 11
    )  # authority; SuperLink and proxy: key, PEM, secret; two nodes: key, inner key, secret
    for path in private:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_the_proxy_is_who_the_operator_said_and_vouched_for_by_the_authority(folder: Path):
    made = folder / "deployment"
    certificate, authority = made / "proxy/proxy.crt", made / "ca/ca.crt"
    for name in (["-verify_hostname", "learn.example.org"], ["-verify_ip", "192.0.2.7"]):
        assert "OK" in said_by_openssl("verify", "-CAfile", authority, *name, certificate)
    assert "OK" not in said_by_openssl(
        "verify", "-CAfile", authority, "-verify_hostname", "evil.example.org", certificate
    )
    assert "OK" not in said_by_openssl("verify", "-CAfile", made / "nodes/node-1/runtime-ca.crt", certificate)


def test_a_site_s_inner_authority_can_sign_nothing_more_for_its_key_is_gone(folder: Path):
    node = folder / "deployment/nodes/node-1"
    assert "OK" in said_by_openssl("verify", "-CAfile", node / "runtime-ca.crt", node / "runtime.crt")
    assert not (node / "runtime-ca.key").exists()


def test_node_keys_are_of_the_curve_p_384_and_differ(folder: Path):
    public = [(folder / f"deployment/nodes/node-{k}/node.key.pub").read_text().split() for k in (1, 2)]
    assert [words[0] for words in public] == ["ecdsa-sha2-nistp384"] * 2
    assert public[0][1] != public[1][1]


def test_the_operator_gets_public_keys_and_the_authority_s_key_stays_with_the_server(folder: Path):
    operator = folder / "deployment/operator-container"
    assert {path.name for path in operator.rglob("*") if path.is_file()} == {
        "config.toml",
        "node-1.pub",
        "node-2.pub",
    }
    assert [path.parent.name for path in folder.rglob("ca.key")] == ["ca"]


def test_a_certificate_that_was_deleted_is_made_again_and_the_node_stays_who_it_is(tmp_path: Path):
    assert keys(tmp_path, "local", "1").returncode == 0
    made = tmp_path / "deployment"
    node, public = made / "nodes/node-1", (made / "nodes/node-1/node.key.pub").read_bytes()
    old = {path: path.read_bytes() for path in (node / "runtime.crt", made / "proxy/proxy.pem")}
    for stale in (*node.glob("runtime.*"), *(made / "proxy").glob("proxy.*")):
        stale.unlink()
    assert keys(tmp_path, "local", "1").returncode == 0
    assert all(path.read_bytes() != before for path, before in old.items())
    assert "OK" in said_by_openssl("verify", "-CAfile", node / "runtime-ca.crt", node / "runtime.crt")
    assert "OK" in said_by_openssl("verify", "-CAfile", made / "ca/ca.crt", made / "proxy/proxy.crt")
    assert (node / "node.key.pub").read_bytes() == public


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("local", "six"), "the number of nodes"),
        (("local", "9"), "1 to 5 nodes"),
        (("local", "03"), "the number of nodes"),
        (("local", "1", "bad name!"), "neither a DNS name nor an address"),
        (("node", "site"), "a folder and the server's ca.crt"),
        (("node", "site", "nowhere.crt"), "nowhere.crt is not there"),
    ],
)
def test_a_wrong_call_is_told_what_is_right(tmp_path: Path, words: tuple[str, ...], sentence: str):
    result = keys(tmp_path, *words)
    assert result.returncode == 2
    assert sentence in result.stderr


def test_the_server_alone_gets_settings_too_for_its_files_are_its_caller_s(tmp_path: Path):
    assert keys(tmp_path, "server", "learn.example.org").returncode == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "compose.env").read_text().splitlines())
    owner = (tmp_path / "deployment/superlink/server.key").stat()
    assert told == {
        "FEDVEIL_DEPLOYMENT": str(tmp_path / "deployment"),
        "FEDVEIL_UID": str(owner.st_uid),
        "FEDVEIL_GID": str(owner.st_gid),
    }


def test_what_is_kept_and_not_as_asked_is_said(folder: Path):
    again = keys(folder, "local", "3", "other.example.org")
    assert again.returncode == 0
    assert "proxy.crt stays as it is, without DNS:other.example.org" in again.stderr
    assert (
        "keeps COMPOSE_PROFILES=two; for what you asked now set COMPOSE_PROFILES=three there" in again.stderr
    )
    assert "keeps FEDVEIL_NODES=2" in again.stderr
    assert keys(folder, "local", "2", "learn.example.org", "192.0.2.7").stderr == ""


def test_another_authority_than_the_one_a_node_has_is_told_and_not_taken(tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        assert keys(tmp_path / name, "server").returncode == 0
    first, second = (str(tmp_path / name / "deployment/ca/ca.crt") for name in ("first", "second"))
    assert keys(tmp_path, "node", "site-a", first).stderr == ""
    assert keys(tmp_path, "node", "site-a", first).stderr == ""
    again = keys(tmp_path, "node", "site-a", second)
    assert again.returncode == 0
    assert f"site-a/superlink-ca.crt stays as it is, and {second} is another" in again.stderr
    kept = tmp_path / "site-a/superlink-ca.crt"
    assert kept.read_bytes() == Path(first).read_bytes()
    kept.unlink()
    assert keys(tmp_path, "node", "site-a", second).stderr == ""
    assert kept.read_bytes() == Path(second).read_bytes()


def test_another_address_than_the_operator_s_is_told_and_not_taken(tmp_path: Path):
    assert keys(tmp_path, "server", FEDVEIL_CONTROL_PORT="8555").stderr == ""
    operator = tmp_path / "deployment/operator/config.toml"
    before = operator.read_text()
    assert 'address = "127.0.0.1:8555"' in before
    assert keys(tmp_path, "server").stderr == ""  # the port is in the settings
    again = keys(tmp_path, "server", FEDVEIL_CONTROL_PORT="8666")
    assert again.returncode == 0
    assert f'{operator} stays as it is, without address = "127.0.0.1:8666": set it there' in again.stderr
    assert "for what you asked now set FEDVEIL_CONTROL_PORT=8666 there" in again.stderr
    assert operator.read_text() == before
    operator.unlink()
    assert keys(tmp_path, "server").stderr == ""
    assert operator.read_text() == before


def test_nothing_of_a_call_stays_outside_the_deployment(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert keys(tmp_path, "server", TMPDIR=str(scratch)).returncode == 0
    assert list(scratch.iterdir()) == []
    assert keys(tmp_path / "scratch", "server", "999.1.1.1", TMPDIR=str(scratch)).returncode == 2
    assert [path.name for path in scratch.iterdir()] == ["deployment"]


def test_what_openssl_refuses_is_an_error_in_words_and_leaves_no_key(tmp_path: Path):
    wrong = keys(tmp_path, "server", "999.1.1.1")
    assert wrong.returncode == 2
    assert "openssl makes no certificate for" in wrong.stderr
    assert "IP:999.1.1.1" in wrong.stderr
    assert not (tmp_path / "deployment/proxy/proxy.key").exists()


def test_a_file_that_is_no_certificate_is_no_authority(tmp_path: Path):
    (tmp_path / "bad.crt").write_text("garbage\n")
    wrong = keys(tmp_path, "node", "site-a", "bad.crt")
    assert wrong.returncode == 2
    assert "bad.crt is no certificate: ask the operator for ca.crt" in wrong.stderr
    assert not (tmp_path / "site-a").exists()


def test_a_setting_is_not_glued_to_a_last_line_without_an_end(tmp_path: Path):
    settings = tmp_path / "compose.env"
    settings.write_text("FIRST=1\nLAST=2")
    assert keys(tmp_path, "server").returncode == 0
    lines = settings.read_text().splitlines()
    assert lines[:3] == ["FIRST=1", "LAST=2", f"FEDVEIL_DEPLOYMENT={tmp_path / 'deployment'}"]
    assert "" not in lines


@pytest.mark.parametrize("stem", ["ca/ca", "superlink/server", "proxy/proxy"])
def test_a_key_whose_certificate_is_gone_is_kept_and_certified_anew(tmp_path: Path, stem: str):
    assert keys(tmp_path, "server").returncode == 0
    made = tmp_path / "deployment"
    key, certificate = made / f"{stem}.key", made / f"{stem}.crt"
    private, old, sites = key.read_bytes(), certificate.read_bytes(), tmp_path / "sites-ca.crt"
    sites.write_bytes((made / "ca/ca.crt").read_bytes())
    certificate.unlink()
    assert keys(tmp_path, "server").returncode == 0
    assert key.read_bytes() == private
    assert certificate.read_bytes() != old
    for authority in (sites, made / "ca/ca.crt"):
        for leaf in ("superlink/server.crt", "proxy/proxy.crt"):
            assert "OK" in said_by_openssl("verify", "-CAfile", authority, made / leaf)


@pytest.mark.parametrize(("gone", "mode"), [("proxy.crt", 0o640), ("proxy.pem", 0o600)])
def test_the_proxy_shows_the_certificate_that_lies_beside_it(tmp_path: Path, gone: str, mode: int):
    assert keys(tmp_path, "server").returncode == 0
    proxy = tmp_path / "deployment/proxy"
    (proxy / "proxy.pem").chmod(mode)
    (proxy / gone).unlink()
    assert keys(tmp_path, "server").returncode == 0
    pem = proxy / "proxy.pem"
    assert pem.read_bytes() == (proxy / "proxy.crt").read_bytes() + (proxy / "proxy.key").read_bytes()
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in proxy.iterdir()}
    assert len(owners) == 1
    assert stat.S_IMODE(pem.stat().st_mode) == mode


def test_a_proxy_without_its_key_keeps_what_it_shows(tmp_path: Path):
    assert keys(tmp_path, "server").returncode == 0
    proxy = tmp_path / "deployment/proxy"
    before = (proxy / "proxy.pem").read_bytes()
    (proxy / "proxy.key").unlink()
    again = keys(tmp_path, "server")
    assert again.returncode == 2
    assert f"{proxy}/proxy.key is not here: bring it back, or delete {proxy}/proxy.*" in again.stderr
    assert (proxy / "proxy.pem").read_bytes() == before


def test_an_empty_node_key_is_made_again_without_a_question(tmp_path: Path):
    assert keys(tmp_path, "server").returncode == 0
    site, authority = tmp_path / "site", str(tmp_path / "deployment/ca/ca.crt")
    site.mkdir()
    (site / "node.key").touch()
    (site / "node.key.pub").write_text("of another key\n")
    result = keys(tmp_path, "node", "site", authority)
    assert result.returncode == 0, result.stderr
    assert "Overwrite" not in result.stdout + result.stderr
    assert public_half(site / "node.key") == (site / "node.key.pub").read_text().split()[:2]


@pytest.mark.parametrize("left", [None, ""])
def test_a_lost_public_key_is_made_from_the_private_one(tmp_path: Path, left: str | None):
    assert keys(tmp_path, "local", "1").returncode == 0
    node = tmp_path / "deployment/nodes/node-1"
    private, public = (node / "node.key").read_bytes(), (node / "node.key.pub").read_text()
    (node / "node.key.pub").unlink()
    if left is not None:
        (node / "node.key.pub").write_text(left)
    result = keys(tmp_path, "local", "1")
    assert result.returncode == 0, result.stderr
    assert (node / "node.key").read_bytes() == private
    assert (node / "node.key.pub").read_text() == public
    assert stat.S_IMODE((node / "node.key.pub").stat().st_mode) == 0o644
    assert (tmp_path / "deployment/operator-container/nodes/node-1.pub").read_text() == public


def test_a_node_key_that_is_none_is_told_and_kept(tmp_path: Path):
    assert keys(tmp_path, "server").returncode == 0
    site = tmp_path / "site"
    site.mkdir()
    (site / "node.key").write_text("garbage\n")
    (site / "node.key").chmod(0o600)
    result = keys(tmp_path, "node", "site", str(tmp_path / "deployment/ca/ca.crt"))
    assert result.returncode == 2
    assert "site/node.key is no private key without a passphrase" in result.stderr
    assert (site / "node.key").read_text() == "garbage\n"


def test_a_name_that_begins_like_an_option_is_refused(tmp_path: Path):
    assert keys(tmp_path, "server").returncode == 0
    authority = tmp_path / "deployment/ca/ca.crt"
    (tmp_path / "-ca.crt").write_bytes(authority.read_bytes())
    for words in (("-site", str(authority)), ("site", "-ca.crt")):
        result = keys(tmp_path, "node", *words)
        assert result.returncode == 2
        assert "begins like an option: write ./-" in result.stderr
    assert not (tmp_path / "site").exists()
    assert keys(tmp_path, "node", "./-site", "./-ca.crt").returncode == 0


def test_a_site_without_a_name_is_refused_before_anything_is_written(tmp_path: Path):
    # an authority that is not there: a script that asks for it first can write nothing into /
    result = keys(tmp_path, "node", "", "nowhere.crt")
    assert result.returncode == 2
    assert "the folder's name is empty" in result.stderr


@pytest.mark.parametrize("name", ['de"ploy', "de\\ntal", "two\nlines"])
def test_a_deployment_whose_path_toml_cannot_say_is_refused(tmp_path: Path, name: str):
    result = keys(tmp_path, "server", FEDVEIL_DEPLOYMENT=str(tmp_path / name))
    assert result.returncode == 2
    assert f"{tmp_path / name} has a quotation mark, a backslash or a control character" in result.stderr
    assert list(tmp_path.iterdir()) == []
