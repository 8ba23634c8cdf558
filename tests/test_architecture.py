"""The layers, read from the imports: who may import whom, what stays light, how long files get."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "transfer": set(),
    "kernels": set(),
    "kvstore": {"transfer"},
    "conductor": {"kvstore"},
    "engine_adapters": {"kvstore", "transfer", "kernels"},
}
SEAMS = {"types", "wire", "errors", "index"}  # beside a package's __init__
TORCH_ONLY_IN = {"engine_adapters", "kernels"}
ENGINES = {"torch", "triton", "transformers", "vllm", "sglang", "lmcache", "safetensors", "gguf"}
NOT_IN_CLIENTS = ("torch", "aiohttp", "lmdb", "uvloop")
MAX_LINES = 500


@dataclass(frozen=True, slots=True)
class Import:
    importer: Path  # relative to the repository
    module: str  # absolute: moontide.kvstore.types, torch, …
    names: tuple[str, ...]  # of `from module import names`
    line: int
    is_relative: bool
    at_start: bool  # runs when the importer is imported

    @property
    def where(self) -> str:
        return f"{self.importer}:{self.line}"


@functools.cache
def files() -> tuple[Path, ...]:
    return tuple(
        sorted(path for component in MAY_IMPORT for path in (ROOT / component).rglob("*.py"))
    )


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(["moontide", *parts])


@functools.cache
def imports() -> tuple[Import, ...]:
    return tuple(found for path in files() for found in _imports_of(path))


def _imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    late = _late_nodes(tree)
    for node in ast.walk(tree):
        at_start = node not in late
        relative = path.relative_to(ROOT)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(relative, alias.name, (), node.lineno, False, at_start)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = tuple(alias.name for alias in node.names)
            yield Import(relative, module, names, node.lineno, node.level > 0, at_start)


def _late_nodes(tree: ast.Module) -> set[ast.AST]:
    """Nodes inside functions and `if TYPE_CHECKING`: not run on import."""
    late: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if is_function or is_typing:
            late.update(ast.walk(node))
    return late


def component_of(path: Path) -> str:
    return path.parts[0]


def ours(found: Import) -> list[str]:
    """Parts after `moontide` of an import of our own, else nothing."""
    parts = found.module.split(".")
    return parts[1:] if parts[0] == "moontide" else []


def test_components_import_only_the_layers_below() -> None:
    wrong = [
        f"{found.where} imports {found.module}"
        for found in imports()
        if (parts := ours(found))
        and parts[0] != component_of(found.importer)
        and parts[0] not in MAY_IMPORT[component_of(found.importer)]
    ]
    assert wrong == []


def test_imports_are_relative_inside_a_component_and_absolute_across() -> None:
    wrong = []
    for found in imports():
        parts = ours(found)
        if parts and (parts[0] == component_of(found.importer)) != found.is_relative:
            wrong.append(f"{found.where} imports {found.module}")
    assert wrong == []


def test_other_components_are_imported_through_their_seams() -> None:
    wrong = []
    for found in imports():
        parts = ours(found)
        if not parts or parts[0] in (component_of(found.importer), "kernels"):
            continue
        is_package = (ROOT.joinpath(*parts) / "__init__.py").exists()
        if not is_package and parts[-1] not in SEAMS:
            wrong.append(f"{found.where} imports {found.module}")
        elif is_package:
            modules = [n for n in found.names if ROOT.joinpath(*parts, f"{n}.py").exists()]
            wrong += [
                f"{found.where} imports {found.module}.{n}" for n in modules if n not in SEAMS
            ]
    assert wrong == []


def test_engines_are_imported_only_by_adapters_and_kernels() -> None:
    wrong = [
        f"{found.where} imports {found.module}"
        for found in imports()
        if found.module.split(".")[0] in ENGINES
        and component_of(found.importer) not in TORCH_ONLY_IN
    ]
    assert wrong == []


def test_nothing_is_pickled() -> None:
    wrong = [
        found.where
        for found in imports()
        if found.module.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    ]
    assert wrong == []


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    known = {module_of(path) for path in files()}
    for found in imports():
        if not found.at_start:
            continue
        targets = {f"{found.module}.{name}" for name in found.names} & known
        # `from .package import name` runs the package's __init__, unless name is a module of it.
        targets |= {found.module} & known if len(targets) < max(len(found.names), 1) else set()
        graph.setdefault(module_of(ROOT / found.importer), set()).update(targets)
    assert _cycle(graph) == []


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle, or nothing."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        pending: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph.get(start, ()))))]
        path.append(start)
        while pending:
            node, targets = pending[-1]
            target = next(targets, None)
            if target is None:
                pending.pop()
                path.pop()
                done.add(node)
            elif target in path:
                return [*path[path.index(target) :], target]
            elif target not in done:
                path.append(target)
                pending.append((target, iter(sorted(graph.get(target, ())))))
    return []


@pytest.mark.parametrize("module", ["moontide.kvstore", "moontide.kvstore.index"])
def test_client_code_stays_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {NOT_IN_CLIENTS!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_files_stay_short() -> None:
    paths = (*files(), *(ROOT / "tests").rglob("*.py"))
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_layout_of_the_repository() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    for component in MAY_IMPORT:
        link = ROOT / ".src" / "moontide" / component
        assert link.is_symlink()
        assert link.resolve() == ROOT / component
    assert not {"common", "utils", "util", "helpers"} & {path.stem for path in files()}
