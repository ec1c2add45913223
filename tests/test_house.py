"""The house as a whole: what an import costs, which room knows which, and what files may say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import omnirecall

ROOT = Path(__file__).parent.parent
PACKAGE = Path(omnirecall.__file__).parent
HEAVY = ("torch", "av", "pandas", "pyarrow.dataset")
ROOMS = ("protocol", "sources", "media", "models", "embedding", "ranking", "results", "view", "cli")
FIRST = frozenset(sys.stdlib_module_names)


@pytest.mark.parametrize("command", ["import omnirecall", "from omnirecall.cli import main; main()"])
def test_light(command: str) -> None:
    script = (
        "import atexit, json, sys\n"
        f"atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\nsys.argv[1:] = ['--help']\n{command}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stderr)
    assert "omnirecall" in loaded
    assert not set(HEAVY) & set(loaded)


def test_every_public_name_is_there() -> None:
    for name in omnirecall.__all__:
        assert getattr(omnirecall, name) is not None
    assert set(omnirecall.__all__) <= set(dir(omnirecall))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = omnirecall.no_such_name


def test_typed() -> None:
    assert resources.files("omnirecall").joinpath("py.typed").is_file()


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether a function does it."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [(name, id(node) in inside) for name in names]
    return found


def files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_protocol_imports_no_other_room() -> None:
    for path in files("protocol"):
        for name, _ in imports(path):
            if name.startswith("omnirecall"):
                assert name.startswith(("omnirecall.protocol", "omnirecall.errors")), (path, name)


def test_ranking_imports_numpy_only_and_torch_inside_functions() -> None:
    for path in files("ranking"):
        for name, in_function in imports(path):
            top = name.split(".")[0]
            own = name.startswith(("omnirecall.ranking", "omnirecall.columns"))
            allowed = top in FIRST or top in ("numpy", "threadpoolctl") or own
            assert allowed or (top == "torch" and in_function), (path, name)


def test_no_room_imports_the_command_line_or_the_page() -> None:
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        if room in ("cli", "view", "__main__.py"):
            continue
        for name, _ in imports(path):
            checked += 1
            assert not name.startswith(("omnirecall.cli", "omnirecall.view")), (path, name)
    assert checked > 100


def test_the_command_line_has_no_logic_of_its_own() -> None:
    for path in files("cli"):
        for name, _ in imports(path):
            assert name.split(".")[0] not in ("numpy", "pyarrow", "msgspec"), (path, name)


def tracked_text() -> list[tuple[Path, str]]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    texts = []
    for name in listed.stdout.splitlines():
        try:
            texts.append((Path(name), (ROOT / name).read_text()))
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    return texts


def test_no_file_names_a_machine_or_a_package_registry() -> None:
    # written in parts, since this file is read too
    folders = "|".join(("home", "root", "Users", "work", "workspace", "mnt"))
    hosts = "|".join(
        ("pypi" + r"\.org", "python" + "hosted", "npmjs" + r"\.org", "jsd" + "elivr", "proxy.go" + "lang" + r"\.org")
    )
    forbidden = re.compile(rf"(?<![\w.~}}/-])/(?:{folders})/\w|{hosts}")
    texts = tracked_text()
    assert len(texts) > 50
    found = {str(path): match[0] for path, text in texts if (match := forbidden.search(text))}
    assert not found
