"""Build the remote evaluators of a server from its settings."""

from collections.abc import Callable

from evald_server.auth.principal import Principal
from evald_server.config import Settings
from evald_server.store.leases import LeaseStore

from .channels import DialTls
from .dial_allowlist import read_target
from .errors import Refusal
from .instances import Catalogue
from .limits import RemoteLimits
from .remotes import RemoteObserver, Remotes


def build_remotes(
    settings: Settings,
    catalogue: Catalogue,
    observer: RemoteObserver,
    store: LeaseStore,
    current: Callable[[Principal], Principal | None],
) -> Remotes:
    """Build the remote evaluators. Raises ValueError, which names the wrong setting."""
    try:
        for one in settings.remote_targets:
            read_target(one.target)
    except Refusal as problem:
        raise ValueError(f"remote_targets: {problem.message}") from None
    profiles = read_tls_profiles(settings)
    try:
        return Remotes(
            catalogue,
            observer,
            store,
            limits=RemoteLimits(
                inflight=settings.remote_max_inflight,
                queued=settings.remote_max_queued,
                queue_seconds=settings.remote_max_queue_seconds,
                instances=settings.remote_max_instances,
                types=settings.remote_max_instances,
                task_bytes=settings.remote_max_task_bytes,
                lease_seconds=settings.remote_lease_seconds,
                health_seconds=settings.remote_health_seconds,
                ping_seconds=settings.remote_ping_seconds,
                ping_timeout=settings.remote_ping_seconds,
            ),
            allowed=settings.remote_allowed,
            targets=settings.remote_targets,
            tls_profiles=profiles,
            blocked=settings.remote_blocked,
            current=current,
        )
    except ValueError as problem:
        raise ValueError(f"remote_allowed: {problem}") from None


def read_tls_profiles(settings: Settings) -> dict[str, DialTls]:
    """Read the files of all TLS profiles. Raises ValueError, which names the wrong setting."""
    profiles = {}
    for name, profile in settings.remote_tls.items():
        try:
            files = (profile.ca_file, profile.key_file, profile.cert_file)
            profiles[name] = DialTls(*(file.read_bytes() if file else None for file in files))
        except OSError as problem:
            raise ValueError(f"remote_tls: {name}: {problem}") from None
    return profiles
