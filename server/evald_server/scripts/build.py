"""Build the runner of the `code` evaluator from the settings."""

import logging

from evald_server.config import Settings

from .runner import ScriptRunner

_log = logging.getLogger("evald.server")


def build_scripts(settings: Settings) -> ScriptRunner:
    """Build the runner of the `code` evaluator. Raises ValueError for settings that this machine cannot enforce."""
    scripts = ScriptRunner(settings)
    if not scripts.unavailable and scripts.isolation == "none":
        _log.warning(
            "scripts run without isolation: %s",
            "code_isolation is off"
            if settings.code_isolation == "off"
            else "the server can use neither bubblewrap nor Landlock on this machine",
        )
    return scripts
