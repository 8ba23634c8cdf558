"""Settings of a daemon: defaults < TOML file < MOONTIDE_<DAEMON>_<KEY> < flags.

A daemon's settings are one frozen `msgspec.Struct`, keyword-only, beside the daemon. A field's name
is its key in the file, `MOONTIDE_<DAEMON>_<NAME>` in the environment and `--name` (with dashes) as
a flag; its description is `Annotated[type, msgspec.Meta(description=…)]`. Anything unknown fails by
name."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, Union

import msgspec

from ..errors import InvalidRequest

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class SettingsError(InvalidRequest):
    """A setting is unknown, missing, of the wrong type or out of range; the text names it and the
    fix."""

    code = "invalid_settings"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings struct, as documentation and the command line see it."""

    name: str
    type: Any
    default: object  # msgspec.NODEFAULT: required
    description: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def metavar(self) -> str:
        """How the value is written, for help."""
        return _metavar(self.type)

    def variable(self, daemon: str) -> str:
        return environment_prefix(daemon) + self.name.upper()


@dataclass(frozen=True, slots=True)
class Loaded(Generic[SettingsT]):
    """Settings with, for each, where its value came from."""

    settings: SettingsT
    sources: Mapping[str, str]


def environment_prefix(daemon: str) -> str:
    return f"MOONTIDE_{daemon.upper().replace('-', '_')}_"


def settings_of(settings_type: type[msgspec.Struct]) -> list[Setting]:
    found = []
    for field in msgspec.structs.fields(settings_type):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Setting(field.name, field.type, default, _description(field.type)))
    return found


def load_settings(
    settings_type: type[SettingsT],
    *,
    daemon: str,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> SettingsT:
    """The settings in force. Raises SettingsError."""
    return load_with_sources(
        settings_type, daemon=daemon, config_file=config_file, environ=environ, flags=flags
    ).settings


def load_with_sources(
    settings_type: type[SettingsT],
    *,
    daemon: str,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded[SettingsT]:
    """As `load_settings`, with each value's source."""
    known = {setting.name: setting for setting in settings_of(settings_type)}
    values: dict[str, object] = {}
    sources = dict.fromkeys(known, "default")
    for given in (
        _from_file(config_file, known),
        _from_environment(environ or {}, daemon, known),
        _from_flags(flags or {}, known),
    ):
        for name, (value, source) in given.items():
            values[name] = value
            sources[name] = source
    for setting in known.values():
        if setting.required and setting.name not in values:
            raise SettingsError(
                f"{setting.name} is required: give {setting.flag}, {setting.variable(daemon)} "
                f"or {setting.name} in the config file"
            )
    try:
        return Loaded(settings_type(**values), sources)
    except ValueError as error:  # __post_init__: settings that contradict each other
        raise SettingsError(str(error)) from error


def changed_settings(settings: SettingsT, values: Mapping[str, str]) -> SettingsT:
    """`settings` with these values, given as text like flags. Raises SettingsError."""
    known = {setting.name: setting for setting in settings_of(type(settings))}
    given = _from_flags(values, known)
    try:
        return msgspec.structs.replace(
            settings, **{name: value for name, (value, _) in given.items()}
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


_Given = dict[str, tuple[object, str]]


def _from_file(config_file: Path | None, known: Mapping[str, Setting]) -> _Given:
    if config_file is None:
        return {}
    try:
        table = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config file {config_file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {config_file}: {error}") from error
    given: _Given = {}
    for key, raw in table.items():
        where = f"{key} in {config_file}"
        if key not in known:
            raise SettingsError(f"unknown setting {where}{nearest(key, known)}")
        given[key] = (_parse(known[key].type, raw, where), f"file {config_file}")
    return given


def _from_environment(
    environ: Mapping[str, str], daemon: str, known: Mapping[str, Setting]
) -> _Given:
    variables = {setting.variable(daemon): setting for setting in known.values()}
    given: _Given = {}
    for variable, text in environ.items():
        if not variable.startswith(environment_prefix(daemon)):
            continue
        if variable not in variables:
            raise SettingsError(
                f"unknown environment variable {variable}{nearest(variable, variables)}"
            )
        setting = variables[variable]
        given[setting.name] = (_parse_text(setting.type, text, variable), f"env {variable}")
    return given


def _from_flags(flags: Mapping[str, str], known: Mapping[str, Setting]) -> _Given:
    given: _Given = {}
    for name, text in flags.items():
        if name not in known:
            raise SettingsError(f"unknown flag --{name.replace('_', '-')}{nearest(name, known)}")
        setting = known[name]
        given[name] = (_parse_text(setting.type, text, setting.flag), f"flag {setting.flag}")
    return given


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or the list of what there is when it is short, or nothing."""
    match = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {match[0]}?" if match else ""


# -- values -----------------------------------------------------------------------


def _parse_text(wanted: Any, text: str, where: str) -> object:
    base, constraints = _unwrap(wanted)
    options = _optional(base)
    if options is not None:
        return None if text in ("", "none") else _parse_text(options, text, where)
    if typing.get_origin(base) is tuple:
        return _parse(wanted, [part.strip() for part in text.split(",") if part.strip()], where)
    return _convert(base, constraints, text, where, lax=True)


def _parse(wanted: Any, raw: object, where: str) -> object:
    """A value of a TOML file: already typed, or text for a type that has a text form."""
    base, constraints = _unwrap(wanted)
    options = _optional(base)
    if options is not None:
        return None if raw == "none" else _parse(options, raw, where)
    if typing.get_origin(base) is tuple:
        if not isinstance(raw, list):
            raise SettingsError(f"{where}: expected a list, got {raw!r}")
        item = typing.get_args(base)[0]
        return tuple(_parse(item, part, where) for part in raw)
    return _convert(base, constraints, raw, where, lax=False)


def _convert(
    base: Any, constraints: tuple[msgspec.Meta, ...], raw: object, where: str, *, lax: bool
) -> object:
    parse = getattr(base, "parse", None)
    try:
        if parse is not None:
            if isinstance(raw, bool) or not isinstance(raw, (str, int)):
                raise ValueError(f"expected text, got {raw!r}")
            value = parse(str(raw))
            _check_bounds(value, constraints)
            return value
        if base is Path:
            if not isinstance(raw, str) or not raw:
                raise ValueError(f"expected a path, got {raw!r}")
            return _path(raw)
        wanted = Annotated[(base, *constraints)] if constraints else base
        return msgspec.convert(raw, wanted, strict=not lax)
    except (ValueError, msgspec.ValidationError) as error:
        raise SettingsError(f"{where}={raw!r}: {error}{_choices(base, raw)}") from error


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ without a home directory
        raise ValueError(f"{error}; write the path in full") from error


def _check_bounds(value: Any, constraints: tuple[msgspec.Meta, ...]) -> None:
    for meta in constraints:
        if meta.ge is not None and value < meta.ge:
            raise ValueError(f"{value!s} is below the least allowed, {type(value)(meta.ge)!s}")
        if meta.le is not None and value > meta.le:
            raise ValueError(f"{value!s} is above the most allowed, {type(value)(meta.le)!s}")


def _choices(base: Any, raw: object) -> str:
    if typing.get_origin(base) is not typing.Literal:
        return ""
    choices = [str(choice) for choice in typing.get_args(base)]
    return f" (one of {', '.join(choices)}{nearest(str(raw), choices)})"


def _unwrap(wanted: Any) -> tuple[Any, tuple[msgspec.Meta, ...]]:
    """The type without Annotated, and the annotations that are msgspec's."""
    metas: list[msgspec.Meta] = []
    while typing.get_origin(wanted) is Annotated:
        wanted, *extras = typing.get_args(wanted)
        metas += [extra for extra in extras if isinstance(extra, msgspec.Meta)]
    return wanted, tuple(metas)


def _optional(base: Any) -> Any | None:
    """X of `X | None`, else None."""
    if typing.get_origin(base) not in (Union, types.UnionType):
        return None
    options = [option for option in typing.get_args(base) if option is not types.NoneType]
    return options[0] if len(options) == 1 else None


def _metavar(wanted: Any) -> str:
    base, _ = _unwrap(wanted)
    options = _optional(base)
    if options is not None:
        return f"{_metavar(options)}|none"
    if typing.get_origin(base) is tuple:
        return f"{_metavar(typing.get_args(base)[0])},…"
    if typing.get_origin(base) is typing.Literal:
        return "|".join(str(choice) for choice in typing.get_args(base))
    named = {int: "NUMBER", float: "NUMBER", bool: "true|false", str: "TEXT", Path: "PATH"}
    return named.get(base) or re.sub(r"(?<=[a-z])(?=[A-Z])", ":", base.__name__).upper()


def _description(wanted: Any) -> str:
    _, metas = _unwrap(wanted)
    return next((meta.description for meta in metas if meta.description), "")
