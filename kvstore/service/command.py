"""One click command a daemon, made from its settings struct."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import msgspec

from moontide.transfer.errors import InvalidRequest as TransferInvalidRequest
from moontide.transfer.errors import TransferError

from ..errors import InvalidRequest, StoreError
from .logs import LogLevel, configure_logging
from .secrets import default_token_file, load_or_create_token
from .settings import Setting, SettingsError, load_settings, load_with_sources, settings_of
from .values import Secret

logger = logging.getLogger(__name__)
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_ENGINE_PACKAGES = frozenset({"torch", "safetensors"})


class CommandFailed(Exception):
    """A command cannot start or go on. The text says why, and what helps; components derive from it
    what they need beyond that."""


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every daemon takes beside its own settings."""

    log_level: Annotated[LogLevel, msgspec.Meta(description="Least level that is logged")] = "info"
    token_file: Annotated[
        Path | None,
        msgspec.Meta(
            description="File (0600) with the cluster token, made when missing; "
            "none: moontide/token under $XDG_STATE_HOME"
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Names, beside IP addresses, localhost and this machine's, that a Host "
            "header may carry"
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """What a daemon's `run` gets beside its settings."""

    name: str
    token_file: Path
    allowed_hosts: tuple[str, ...] = ()

    def token(self) -> str:
        """The cluster token; the file is made when missing. Raises AccessDenied, InvalidRequest."""
        return load_or_create_token(self.token_file)

    def report_ready(self, **addresses: object) -> None:
        """Say on stderr that work is taken now, and where (a port 0 is told here)."""
        told = " ".join(f"{name}={address}" for name, address in addresses.items())
        logger.info("ready process=%s pid=%d %s", self.name, os.getpid(), told)


def daemon_command(
    name: str,
    settings_type: type[SettingsT],
    run: Callable[[SettingsT, Process], int],
    help: str,
) -> click.Command:
    """`moontide NAME`: a flag for every setting, `--config`, `--print-config`, and the common ones.

    `run` gets the settings in force and returns the exit status. An error that a user can cause
    (CommandFailed, StoreError, TransferError, OSError) ends in one line on stderr."""
    own = settings_of(settings_type)
    names = {setting.name for setting in own}
    common = [setting for setting in settings_of(CommonSettings) if setting.name not in names]

    def callback(config: Path | None, print_config: bool, **flags: str | None) -> None:
        given = {key: text for key, text in flags.items() if text is not None}
        sys.exit(guarded(name, lambda: _run(name, settings_type, run, config, print_config, given)))

    options: list[click.Parameter] = [
        setting_option(name, setting) for setting in sorted(own + common, key=lambda s: s.name)
    ]
    options += [
        click.Option(["--config"], type=click.Path(path_type=Path), help="TOML file of settings"),
        click.Option(
            ["--print-config"], is_flag=True, help="Show every value and its source, then end"
        ),
    ]
    return click.Command(name, callback=callback, params=options, help=help)


def guarded(name: str, body: Callable[[], int]) -> int:
    """Run `body`; an error a user can cause becomes one line on stderr and an exit status."""
    try:
        return body()
    except (InvalidRequest, TransferInvalidRequest) as error:
        status, text = EXIT_USAGE, str(error)
    except (CommandFailed, StoreError, TransferError) as error:
        status, text = EXIT_FAILED, str(error)
    except ImportError as error:
        status, text = EXIT_FAILED, explain_import_error(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        status, text = EXIT_FAILED, f"{where}{error.strerror or error}"
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    click.echo(f"moontide {name}: {' '.join(text.split())}", err=True)
    return status


def explain_import_error(error: ImportError) -> str:
    """One line that names the package to install."""
    package = (error.name or "").partition(".")[0]
    if package in _ENGINE_PACKAGES:
        return f"{error}: this command needs the engine, pip install 'moontide[engine]'"
    if isinstance(error, ModuleNotFoundError):
        return f"{error}: the installation is incomplete, pip install moontide"
    return f"{error}: a package is damaged or does not fit this Python; install again"


def _run(
    name: str,
    settings_type: type[SettingsT],
    run: Callable[[SettingsT, Process], int],
    config: Path | None,
    print_config: bool,
    flags: Mapping[str, str],
) -> int:
    loaded = load_with_sources(
        _combined(settings_type), daemon=name, config_file=config, environ=os.environ, flags=flags
    )
    values: Any = loaded.settings
    settings = _own(settings_type, values)
    if print_config:
        for setting in settings_of(type(values)):
            value = _show(getattr(values, setting.name))
            click.echo(f"{setting.name} = {value}  # {loaded.sources[setting.name]}")
        return 0
    configure_logging(values.log_level)
    token_file = values.token_file or default_token_file(os.environ.get("XDG_STATE_HOME"))
    return run(settings, Process(name, token_file, tuple(values.allowed_hosts)))


def load_command_settings(
    name: str,
    settings_type: type[SettingsT],
    *,
    config_file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> SettingsT:
    """The settings `moontide NAME` would run with; the common ones may be among them and are
    checked. Raises SettingsError."""
    values = load_settings(
        _combined(settings_type),
        daemon=name,
        config_file=config_file,
        environ=environ,
        flags=flags,
    )
    return _own(settings_type, values)


def _own(settings_type: type[SettingsT], values: Any) -> SettingsT:
    """The daemon's part of the combined settings."""
    try:
        return settings_type(
            **{s.name: getattr(values, s.name) for s in settings_of(settings_type)}
        )
    except ValueError as error:  # __post_init__: settings that contradict each other
        raise SettingsError(str(error)) from error


def _combined(settings_type: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The daemon's settings and the common ones it has not itself, as one struct."""
    own = settings_of(settings_type)
    names = {setting.name for setting in own}
    every = own + [s for s in settings_of(CommonSettings) if s.name not in names]
    fields = [
        (s.name, s.type) if s.required else (s.name, s.type, msgspec.field(default=s.default))
        for s in every
    ]
    return msgspec.defstruct(settings_type.__name__, fields, frozen=True, kw_only=True)


def setting_option(daemon: str, setting: Setting) -> click.Option:
    """The flag of a daemon's setting, with its default in the help."""
    note = "required" if setting.required else f"default: {_show(setting.default)}"
    return click.Option(
        [setting.flag, setting.name],
        metavar=setting.metavar,
        help=f"{setting.description} [{note}; {setting.variable(daemon)}]",
    )


def _show(value: object) -> str:
    """TOML text of a value; a secret is masked."""
    if value is None:
        return '"none"'
    if isinstance(value, Secret):
        return f'"{value!s}"'
    if isinstance(value, bool):
        return str(value).lower()
    if type(value) in (int, float):
        return repr(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return "[" + ", ".join(_show(item) for item in value) + "]"
    return msgspec.json.encode(str(value)).decode()
