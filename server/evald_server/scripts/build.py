"""Build the runner of the `code` evaluator from the settings."""

import logging

from evald_server.config import Settings

from .policy import ScriptPolicy
from .runner import ScriptRunner

_log = logging.getLogger("evald.server")


def build_scripts(settings: Settings) -> ScriptRunner:
    """Build the runner of the `code` evaluator. Raises ValueError for a policy that this machine cannot enforce."""
    policy = ScriptPolicy(
        allow=settings.code_allow,
        shell=settings.code_shell,
        isolation=settings.code_isolation,
        read=settings.code_read,
        directory=settings.code_directory,
        environment=settings.code_environment,
        timeout_seconds=settings.code_timeout,
        concurrency=settings.code_concurrency,
        memory_bytes=settings.code_memory_bytes,
        processes=settings.code_processes,
        output_bytes=settings.code_output_bytes,
    )
    scripts = ScriptRunner(policy)
    if not scripts.unavailable and scripts.isolation == "none":
        _log.warning(
            "scripts run without isolation: %s",
            "code_isolation is off"
            if settings.code_isolation == "off"
            else "the server can use neither bubblewrap nor Landlock on this machine",
        )
    return scripts
