"""Dependencies point one way (design section 2): service and tuner know trainer, trainer knows neither.

Imports are read from the syntax tree, so a forbidden one is found even in code that no test runs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGES = ("trainer", "tuner", "service")
FORBIDDEN = {  # the learning knows nothing of sweeps or HTTP; sweeps know nothing of the service
    "trainer": {"tuner", "service", "optuna", "fastapi", "starlette", "uvicorn"},
    "tuner": {"service", "fastapi", "starlette", "uvicorn"},
}
PURE = (
    "trainer.config", "trainer.spec", "trainer.methods", "trainer.presets", "trainer.errors", "trainer.callbacks",
    "trainer.data.datasets", "trainer.planning", "trainer.parallel.connection",
    "trainer.files", "trainer.process", "tuner.config", "tuner.space", "tuner.journal",
    "tuner.results",
)  # fmt: skip
TORCH_SIDE = "service/encoder/worker.py"  # runs in a process of its own that has torch; the API never imports it
HEAVY = {
    "torch", "torch_geometric", "ray", "mlflow", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "optuna",
    "plotly", "faiss", "safetensors",
}  # fmt: skip
MAX_LINES = 400


class Import(NamedTuple):
    module: str  # dotted, with the imported name: `from a import b` is a.b
    line: int
    inside_function: bool


def imports(source: str, file: Path) -> Iterator[Import]:
    """Every import of a file, `file` being its path below the root; relative ones are made absolute."""

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            parents = file.parent.parts[: len(file.parent.parts) - node.level + 1] if node.level else ()
            origin = ".".join((*parents, *([node.module] if node.module else [])))
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno, inside)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def violations(source: str, file: Path) -> list[str]:
    """One sentence per import that points the wrong way."""
    package, found = file.parts[0], []
    for item in imports(source, file):
        top = item.module.split(".")[0]
        where = f"{file.as_posix()}:{item.line}: imports {item.module}"
        if top in FORBIDDEN.get(package, ()):
            found.append(f"{where}, but {package} must not know {top}")
        elif package == "trainer" and top == "ray":
            starts_workers = item.inside_function and file.parts[1] == "parallel"
            if not starts_workers or item.module.split(".")[1:2] == ["tune"]:
                found.append(f"{where}; trainer may use ray in functions of trainer/parallel, and never ray.tune")
        elif package == "service" and top in ("trainer", "tuner"):
            pure = any(item.module == name or item.module.startswith(f"{name}.") for name in PURE)
            drives_trainer = item.inside_function and file.parts[1] == "cli"
            computes = file.as_posix() == TORCH_SIDE and item.module.startswith("trainer.inference.")
            if not (pure or drives_trainer or computes):
                found.append(f"{where}; service may use {', '.join(PURE)}; the rest only in functions of service/cli")
    return found


def sources(root: Path) -> list[Path]:
    return [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]


def test_dependencies_point_one_way(repo_root):
    found = [
        line
        for path in sources(repo_root)
        for line in violations(path.read_text(encoding="utf-8"), path.relative_to(repo_root))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "file, source, allowed",
    [
        ("trainer/loop.py", "import service.cli", False),
        ("trainer/loop.py", "def f():\n    from tuner import config", False),
        ("trainer/loop.py", "from ray import tune", False),
        ("trainer/loop.py", "def f():\n    import ray", False),
        ("trainer/parallel/a.py", "import ray", False),
        ("trainer/parallel/a.py", "class A:\n    import ray", False),
        ("trainer/parallel/a.py", "def f():\n    import ray", True),
        ("trainer/parallel/a.py", "def f():\n    from ray.train.torch import TorchTrainer", True),
        ("trainer/parallel/a.py", "def f():\n    from ray import tune", False),
        ("trainer/parallel/a.py", "def f():\n    import ray.tune.search as s", False),
        ("trainer/parallel/a.py", "def f():\n    from tuner import config", False),
        ("trainer/parallel.py", "def f():\n    import ray", False),
        ("trainer/run/a.py", "from ..service import x", True),  # that is trainer.service, not service
        ("tuner/run.py", "from trainer.loop import fit", True),
        ("tuner/run.py", "import service", False),
        ("service/app.py", "from trainer.config import TrainSpec", True),
        ("service/app.py", "from trainer import config, errors", True),
        ("service/app.py", "import trainer.presets", True),
        ("service/app.py", "from trainer import fit", False),
        ("service/app.py", "import trainer", False),
        ("service/app.py", "from trainer import configuration", False),
        ("service/app.py", "def f():\n    from trainer import fit", False),
        ("service/cli/train.py", "from trainer import fit", False),
        ("service/cli/train.py", "class A:\n    from trainer import fit", False),
        ("service/cli/train.py", "def f():\n    from trainer import fit", True),
        ("service/cli/train.py", "from . import console", True),
        ("service/encoder/worker.py", "def f():\n    from trainer.inference.classify import classify", True),
        ("service/encoder/worker.py", "from trainer import fit", False),
        ("service/encoder/client.py", "def f():\n    from trainer.inference.classify import classify", False),
    ],
)
def test_checker_tells_allowed_from_forbidden(file, source, allowed):
    assert (not violations(source, Path(file))) == allowed


LIGHT = (
    "trainer", "trainer.config", "trainer.presets", "trainer.errors", "trainer.callbacks", "tuner", "tuner.config",
    "tuner.journal", "tuner.results", "tuner.sweep", "trainer.data.datasets", "trainer.planning.plan",
    "trainer.planning.shape", "service", "service.cli", "service.app", "service.client", "service.dispatch.dispatcher",
    "service.dispatch.supervisor", "service.encoder.server",
)  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_import_loads_nothing_heavy(module, repo_root):
    code = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert not HEAVY & set(run.stdout.split())


def test_parallel_training_loads_no_ray_before_it_starts(repo_root):
    modules = "trainer.parallel.ray_train, trainer.parallel.launcher, trainer.parallel.worker"
    code = f"import sys, {modules}; print('ray' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "False"), run.stderr


def test_files_stay_small(repo_root):
    long = [
        f"{path.relative_to(repo_root)}: {lines} lines"
        for path in sources(repo_root)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    ]
    assert not long, f"over {MAX_LINES} lines; give each idea its own file:\n" + "\n".join(long)
