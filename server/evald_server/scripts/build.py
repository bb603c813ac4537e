"""Build the runner of the `code` evaluator from the settings."""

import logging

from evald_server.config import Settings

from .runner import ScriptRunner

_log = logging.getLogger("evald.server")


def build_scripts(settings: Settings) -> ScriptRunner:
    """Build the runner of the `code` evaluator. Raises ValueError for settings that this machine cannot enforce."""
    scripts = ScriptRunner(settings)
    if scripts.allows_any and scripts.unavailable:
        _log.warning("scripts cannot run: %s", scripts.unavailable)
    return scripts
