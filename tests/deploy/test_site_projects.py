"""Sites on machines of their own: compose projects with networks of their own that meet at the proxy alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.deploy

SITES = 2


@pytest.fixture(scope="module")
def server(new_stack: Any, deploy: ModuleType, scenes: ModuleType) -> Iterator[Any]:
    """A server without nodes, and two sites that have sent it their public keys."""
    stack = new_stack(nodes=0)
    scenes.furnish(stack)
    stack.up()
    sites = [deploy.Site(stack, number, SITES) for number in range(SITES)]
    try:
        for site in sites:
            scenes.furnish_folder(stack, site.folder, site.number)
            site.up()
        said = stack.compose("run", "--rm", "operator", "register")
        assert said.count(": registered") == SITES
        stack.wait_online(SITES)
        yield stack
    finally:
        for site in sites:
            site.down()


def test_two_sites_that_meet_at_the_proxy_fit_a_model(server: Any, scenes: ModuleType):
    run = server.run_app("modulated", scenes.MODULATED).completed()
    assert (run.folder / "model.safetensors").is_file()
    for number in range(SITES):
        assert (server.folder / f"site-{number}" / "state/node-ledger.sqlite").is_file()


def test_registering_again_is_harmless(server: Any):
    said = server.compose("run", "--rm", "operator", "register")
    assert said.count(": registered before") == SITES
