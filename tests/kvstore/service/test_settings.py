from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from moontide.kvstore.service import (
    HostPort,
    Secret,
    SettingsError,
    Size,
    load_settings,
    load_with_sources,
    settings_of,
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Annotated[str, msgspec.Meta(description="Name of this node")]
    dram: Annotated[Size, msgspec.Meta(description="Pool", ge=1 << 20)] = Size(1 << 30)
    listen: HostPort = HostPort("127.0.0.1", 7420)
    eviction: Literal["slru", "lru"] = "slru"
    ratio: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.2
    entries: Annotated[int, msgspec.Meta(ge=1)] = 1000
    transports: tuple[Literal["shm", "tcp"], ...] = ("shm",)
    data_dir: Path | None = None
    key: Secret = Secret("")

    def __post_init__(self) -> None:
        if self.entries > self.dram:
            raise ValueError(f"entries={self.entries} do not fit in dram={self.dram}")


def load(
    *, environ: dict[str, str] | None = None, file: Path | None = None, **flags: str
) -> Sample:
    return load_settings(
        Sample, daemon="sample", config_file=file, environ=environ, flags={"node_id": "n", **flags}
    )


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sample.toml"
    path.write_text(text)
    return path


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, 'dram = "1MiB"\nentries = 1\neviction = "lru"\nratio = 0.5\n')
    environ = {"MOONTIDE_SAMPLE_ENTRIES": "2", "MOONTIDE_SAMPLE_DRAM": "2MiB", "PATH": "/bin"}
    loaded = load_with_sources(
        Sample,
        daemon="sample",
        config_file=file,
        environ=environ,
        flags={"node_id": "n", "dram": "3MiB"},
    )
    settings = loaded.settings
    assert (settings.dram, settings.entries, settings.ratio) == (3 << 20, 2, 0.5)
    assert settings.listen == HostPort("127.0.0.1", 7420)
    assert loaded.sources["dram"] == "flag --dram"
    assert loaded.sources["entries"] == "env MOONTIDE_SAMPLE_ENTRIES"
    assert loaded.sources["eviction"] == f"file {file}"
    assert loaded.sources["listen"] == "default"


def test_every_kind_of_value_is_read_from_text_and_from_toml(tmp_path: Path) -> None:
    toml = """
        dram = 2097152
        listen = "[::1]:0"
        transports = ["tcp", "shm"]
        data_dir = "/var/lib/x"
        key = "k"
    """
    text = {
        "dram": "2MiB",
        "listen": "[::1]:0",
        "transports": "tcp, shm",
        "data_dir": "/var/lib/x",
        "key": "k",
    }
    assert load(file=write(tmp_path, toml)) == load(**text)
    assert load(data_dir="none").data_dir is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"drma": "1MiB"}, r"unknown flag --drma; did you mean dram\?"),
        ({"dram": "1MB"}, r"--dram='1MB': '1MB' is no size"),
        ({"dram": "1KiB"}, r"--dram='1KiB': 1KiB is below the least allowed, 1MiB"),
        ({"listen": "7420"}, r"--listen='7420': '7420' is no address"),
        ({"entries": "many"}, r"--entries='many': Expected `int`"),
        ({"entries": "0"}, r"--entries='0': Expected `int` >= 1"),
        ({"ratio": "1.0"}, r"--ratio='1.0': Expected `float` < 1.0"),
        ({"eviction": "lur"}, r"--eviction='lur': .*one of slru, lru; did you mean lru\?"),
        ({"transports": "shm,udp"}, r"--transports='udp': .*one of shm, tcp"),
        ({"data_dir": "~nobody-has-this-name/d"}, r"--data-dir='~nobody.*write the path in full"),
        ({"entries": "99999999", "dram": "1MiB"}, r"entries=99999999 do not fit in dram=1MiB"),
    ],
)
def test_r76_a_wrong_flag_is_named_with_the_bound(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(**flags)


def test_r76_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(SettingsError, match=r"MOONTIDE_SAMPLE_DRMA; did you mean MOONTIDE_SAMPLE_"):
        load(environ={"MOONTIDE_SAMPLE_DRMA": "1MiB"})
    with pytest.raises(SettingsError, match="MOONTIDE_SAMPLE_ENTRIES='x'"):
        load(environ={"MOONTIDE_SAMPLE_ENTRIES": "x"})


def test_another_daemons_variables_are_left_alone() -> None:
    assert load(environ={"MOONTIDE_OTHER_DRMA": "1MiB", "MOONTIDE_SAMPLES": "1"}) == load()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("drma = 1", r"unknown setting drma in .*; did you mean dram\?"),
        ("entries = '5'", r"entries in .*='5': Expected `int`, got `str`"),
        ("entries = true", r"entries in .*=True: Expected `int`"),
        ("dram = 1.5", r"dram in .*=1.5: expected text"),
        ("transports = 'shm'", r"transports in .*: expected a list"),
        ("data_dir = 3", r"data_dir in .*=3: expected a path"),
        ("[store]\ndram = 1", r"unknown setting store"),
        ("dram = ", r"config file .*sample.toml: "),
    ],
)
def test_r76_a_wrong_line_of_the_file_is_named(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(file=write(tmp_path, toml))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere.toml: No such file"):
        load(file=tmp_path / "nowhere.toml")


def test_a_missing_required_setting_says_where_it_can_be_given() -> None:
    with pytest.raises(SettingsError, match="--node-id, MOONTIDE_SAMPLE_NODE_ID or node_id"):
        load_settings(Sample, daemon="sample", environ={}, flags={})


def test_settings_describe_themselves() -> None:
    described = {setting.name: setting for setting in settings_of(Sample)}
    assert described["node_id"].required
    assert described["dram"].description == "Pool"
    assert described["data_dir"].metavar == "PATH|none"
    assert described["listen"].metavar == "HOST:PORT"
    assert described["transports"].metavar == "shm|tcp,…"
