"""The page to sign in needs nothing from elsewhere; of all other pages `opened` says so where they are tested."""

from pathlib import Path
from typing import Any

import pytest

from evald_server.auth.principal import Role
from evald_server.testing import server

from ..auth.keyring import make_key
from .test_console_browser import opened

pytestmark = pytest.mark.browser


def test_signing_in_asks_for_nothing_elsewhere(browser: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = make_key(keys, "ops", Role.ADMIN)
    with (
        server(web="127.0.0.1:0", keys_file=keys) as found,
        opened(browser, f"http://{found.web_address}/console/sign-in?next=/console/judge") as page,
    ):
        page.locator("input[name=key]").fill(key)
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/judge")
