"""What every daemon shares: settings, command line, token, logs, HTTP.

Other components import from here. Never imported by client code (it brings aiohttp).
"""

from .children import die_with_parent
from .command import (
    CommandFailed,
    CommonSettings,
    Process,
    daemon_command,
    explain_import_error,
    guarded,
    load_command_settings,
    setting_option,
)
from .flags import Seconds, json_file_flag, size_flag
from .http import (
    DEFAULT_ERRORS,
    AnyRoute,
    Auth,
    Call,
    ErrorBody,
    ErrorDetail,
    ErrorShape,
    HttpError,
    HttpServer,
    Limits,
    Plain,
    Route,
    ServerEvent,
    bind_listener,
    bound_address,
    build_app,
    probe_routes,
    send_events,
    wait_for_stop,
)
from .logs import configure_logging
from .secrets import default_token_file, load_or_create_token
from .settings import (
    Setting,
    SettingsError,
    changed_settings,
    load_settings,
    load_with_sources,
    settings_of,
)
from .values import HostPort, Secret, Size, human_size

__all__ = [
    "AnyRoute",
    "Auth",
    "Call",
    "CommandFailed",
    "CommonSettings",
    "DEFAULT_ERRORS",
    "ErrorBody",
    "ErrorDetail",
    "ErrorShape",
    "HostPort",
    "HttpError",
    "HttpServer",
    "Limits",
    "Plain",
    "Process",
    "Route",
    "Seconds",
    "Secret",
    "ServerEvent",
    "Setting",
    "SettingsError",
    "Size",
    "bind_listener",
    "bound_address",
    "build_app",
    "changed_settings",
    "configure_logging",
    "daemon_command",
    "default_token_file",
    "die_with_parent",
    "explain_import_error",
    "guarded",
    "human_size",
    "json_file_flag",
    "load_command_settings",
    "load_or_create_token",
    "load_settings",
    "load_with_sources",
    "probe_routes",
    "send_events",
    "setting_option",
    "settings_of",
    "size_flag",
    "wait_for_stop",
]
