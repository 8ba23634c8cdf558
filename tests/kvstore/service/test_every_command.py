"""R75 and R76 for every setting of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).parents[3]
DAEMONS = ("store", "worker", "conductor", "up", "demo")


def load(name: str) -> click.Command:
    command = metadata.entry_points(group="moontide.commands")[name].load()
    assert isinstance(command, click.Command)
    return command


def settings(command: click.Command) -> list[click.Option]:
    found = [option for option in command.params if isinstance(option, click.Option)]
    return [option for option in found if option.name not in ("config", "print_config")]


def run(command: click.Command, *arguments: str, **environ: str) -> Result:
    others = {key: None for key in os.environ if key.startswith("MOONTIDE_")}
    return CliRunner().invoke(command, list(arguments), env={**others, **environ})


@pytest.mark.parametrize("name", DAEMONS)
def test_r76_a_typo_of_any_setting_fails_by_name_wherever_it_is(name: str, tmp_path: Path) -> None:
    command = load(name)
    file = tmp_path / "typo.toml"
    for option in settings(command):
        key = f"{option.name}x"
        file.write_text(f"{key} = 1\n")
        flag = option.opts[0] + "x"
        variable = f"MOONTIDE_{name.upper()}_{key.upper()}"
        for named, result in (
            (key, run(command, "--config", str(file))),
            (variable, run(command, **{variable: "1"})),
            (flag, run(command, flag, "1")),
        ):
            assert result.exit_code == 2, named
            assert named in result.stderr
            assert str(option.name) in result.stderr.replace("-", "_").lower(), "no suggestion"


@pytest.mark.parametrize("name", DAEMONS)
def test_r76_a_value_of_the_wrong_type_fails_by_name(name: str, tmp_path: Path) -> None:
    command = load(name)
    file = tmp_path / "type.toml"
    for option in settings(command):
        file.write_text(f"{option.name} = [[1]]\n")
        result = run(command, "--config", str(file))
        assert result.exit_code == 2, option.name
        assert f"{option.name} in {file}" in result.stderr


@pytest.mark.parametrize("name", DAEMONS)
def test_r75_help_shows_the_default_in_force(name: str) -> None:
    command = load(name)
    required = {
        "store": ("--node-id", "n", "--data-dir", "/d", "--socket", "/s"),
        "worker": ("--id", "w", "--store", "unix:/s"),
        "conductor": ("--cluster", "file:/c"),
    }
    result = run(command, *required.get(name, ()), "--print-config")
    assert result.exit_code == 0, result.stderr
    shown = dict(
        re.fullmatch(r"(\w+) = (.*)  # default", line).groups()  # type: ignore[union-attr]  # it matches
        for line in result.stdout.splitlines()
        if line.endswith("# default")
    )
    assert shown
    for option in settings(command):
        default = re.search(r"\[default: (.*); MOONTIDE_\w+\]$", option.help or "")
        if option.name in shown:
            assert default is not None, option.name
            assert default[1] == shown[str(option.name)]


@pytest.mark.parametrize("name", DAEMONS)
def test_every_setting_is_described(name: str) -> None:
    for option in settings(load(name)):
        text = (option.help or "").partition(" [")[0]
        assert len(text) > 3, option.name


def test_r75_the_pages_made_from_the_code_are_what_it_says() -> None:
    """Settings, commands, metrics, limits: every option, name, default and bound."""
    command = [sys.executable, str(ROOT / "docs" / "make_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_r75_commands_in_the_documentation_use_flags_that_exist() -> None:
    wrong = []
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("deploy/*.md")]
    names = metadata.entry_points(group="moontide.commands").names
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, rest in re.findall(r"^\s*(?:\S*/)?moontide (\w+)(.*)$", text, re.MULTILINE):
            if name not in names:
                wrong.append(f"{page.name}: moontide {name}")
                continue
            known = _flags(load(name))
            given = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)
            wrong += [f"{page.name}: moontide {name} {flag}" for flag in given if flag not in known]
    assert wrong == []


def _flags(command: click.Command) -> set[str]:
    """Of the command and, for a group, of its subcommands."""
    found = {opt for param in command.params for opt in param.opts} | {"--help"}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            assert sub is not None, name
            found |= _flags(sub)
    return found
