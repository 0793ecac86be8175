"""Documents say what is there: links, commands, options, routes, settings, specs, snippets and places in the code.

Pages are plain Markdown (README.md, CONTRIBUTING.md, CHANGELOG.md, docs/, docker/). A Python block after
`<!-- runnable -->` is run in an empty directory; every other one must at least parse and import what exists.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.exceptions import TyperException

from service.app import create_app
from service.cli import app
from service.cli.spec_options import Asked, assemble
from service.settings import Settings
from tests.contract.markdown import Block, Page, split
from trainer.config import TrainSpec, parse_spec
from trainer.spec.data import DatasetName
from tuner.config import parse_sweep

ROOT = Path(__file__).resolve().parents[2]
PAGES = [Page(path) for pattern in ("*.md", "docs/*.md", "docker/*.md") for path in sorted(ROOT.glob(pattern))]
GUIDES = [page for page in PAGES if page.path.name not in ("methods.md", "CHANGELOG.md")]  # those speak of other code
FOLDERS = ("trainer", "tuner", "service", "tests", "docker", "docs")
PLACE = re.compile(r"(?<![\w/.-])((?:trainer|tuner|service|tests|docker|docs)/[\w./-]*\w)(?::([A-Za-z_][\w.]*))?")
VARIABLE = re.compile(r"\bNML_[A-Z_]*[A-Z]\b")
ROUTE = re.compile(r"^(GET|POST|PUT|DELETE|PATCH) (/\S*)$")
MOST_LINES_OF_README = 200

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.path.relative_to(ROOT)))
every_guide = pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.path.relative_to(ROOT)))


def test_there_are_pages():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md"} <= {
        page.path.relative_to(ROOT).as_posix() for page in PAGES
    }


def test_readme_stays_short_and_every_page_is_in_the_index():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_README
    linked = set(Page(ROOT / "docs" / "README.md").links())
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


@every_page
def test_links_lead_somewhere(page: Page):
    broken = []
    for link in page.links():
        if re.match(r"(https?|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if not target.exists() or (anchor and anchor not in Page(target).anchors()):
            broken.append(link)
    assert not broken


@every_guide
def test_places_in_the_code_exist(page: Page):
    """`trainer/loop.py` is a file, and `trainer/loop.py:fit` is defined in it."""
    missing = []
    for path, name in PLACE.findall(page.text):
        if not (ROOT / path).exists() or (name and path.endswith(".py") and name not in defined(ROOT / path)):
            missing.append(f"{path}:{name}" if name else path)
    assert not missing


def defined(path: Path) -> set[str]:
    """Functions and classes of a module; methods as Class.method."""
    names: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)
            else:
                visit(child, prefix)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return names


@pytest.mark.parametrize(
    "cited, document, heading",
    [
        (r"design section (\d+)", "design.md", "## {}. "),
        (r"methods (\d+)(?![.\d])", "methods.md", "## {}. "),
        (r"methods (\d+\.\d+)", "methods.md", "### {} "),
    ],
)
def test_sections_that_the_code_cites_exist(cited: str, document: str, heading: str):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    found = {
        (str(path.relative_to(ROOT)), number)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for number in re.findall(cited, path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    assert found
    assert [each for each in found if f"\n{heading.format(each[1])}" not in text] == []


# Commands


@every_guide
def test_commands_can_be_given(page: Page):
    """What a shell block says is parsed by the command itself; nothing is run."""
    wrong = [f"{' '.join(words)}: {problem}" for words in page.commands() if (problem := refused(words, whole=True))]
    assert not wrong, "\n" + "\n".join(wrong)


@every_guide
def test_commands_in_the_text_exist(page: Page):
    """`nml jobs` in a sentence may leave out what it needs, but must name a command and options that exist."""
    commands = [words for span in page.spans() for words in split(span)]
    wrong = [f"{' '.join(words)}: {problem}" for words in commands if (problem := refused(words, whole=False))]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line, whole, fine",
    [
        ("nml neighbors --node 42 -k 10", True, True),
        ("nml lookup --of latest", True, False),  # needs --node
        ("nml lookup --of latest", False, True),
        ("nml neighbors --nodes 42", False, False),
        ("nml naybors --node 42", False, False),
        ("nml sweep results sweeps/photo", True, True),
        ("nml train --set method.temperature=0.4", True, True),
        ("nml train --set method.temprature=0.4", True, False),
        ("nml train --set method.temperature=0", True, False),
        ("nml train --method untrained --set method.temperature=0.4", True, False),
        ("make test", True, True),
        ("make coffee", True, False),
        ("python -m trainer --help", True, True),
        ("python -m trainer.nothing", True, False),
        ("python tests/benchmarks/scale.py exact --batch-size 2048", True, True),
        ("python tests/benchmarks/scale.py exact --batch 2048", True, False),
        ("python tests/benchmarks/nothing.py", True, False),
        ("ls --all", True, True),  # not ours
    ],
)
def test_checker_tells_commands_that_exist(line: str, whole: bool, fine: bool):
    (words,) = split(line)
    assert (refused(words, whole=whole) is None) == fine


def refused(words: list[str], *, whole: bool) -> str | None:
    """Why a command of ours cannot be given so; None if it can, or is not ours."""
    if words[0] == "make":
        targets = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        unknown = [word for word in targets if not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE)]
        return f"no target {unknown[0]}" if unknown else None
    if words[0] in ("python", "python3"):
        return refused_by_python(words[1:])
    return refused_by_nml(words[1:], whole=whole) if words[0] == "nml" and len(words) > 1 else None


def refused_by_nml(words: list[str], *, whole: bool) -> str | None:
    command: Any = typer.main.get_command(app)
    name, chosen = "nml", None
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        name, command, words = f"{name} {words[0]}", command.commands[words[0]], words[1:]
        chosen = chosen or name
    if chosen is None:
        return None if words[0].startswith("--help") else f"no command {words[0]}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in {*options, "--help"}]
    if unknown:
        return f"no option {unknown[0]}"
    if not whole or (isinstance(command, TyperGroup) and not command.invoke_without_command):
        return None
    try:
        context = command.make_context(name, [*words])
    except TyperException as error:
        return None if re.search(r"(File|Path) '.*' does not exist", str(error)) else str(error)
    overrides = context.params.get("overrides")
    return refused_by_spec(context.params, overrides) if overrides and name != "nml datasets push" else None


def refused_by_spec(parameters: dict[str, Any], overrides: list[str]) -> str | None:
    dataset = parameters.get("dataset")
    named = dataset if dataset in get_args(DatasetName) else "digits"
    try:
        assemble(Asked(None, named, parameters.get("method"), parameters.get("preset"), overrides))
    except ValueError as error:
        return str(error)
    return None


def refused_by_python(words: list[str]) -> str | None:
    """A module or script must exist, and its options must be written somewhere in it."""
    while words and words[0] in ("-P", "-u"):
        words = words[1:]
    if not words or words[0] in ("-c", "-"):
        return None
    if words[0] == "-m":
        module, words = words[1], words[2:]
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            return f"no module {module}"
        origin = Path(spec.origin)
        if module.split(".")[0] not in FOLDERS:
            return None
        sources = sorted(origin.parent.glob("*.py")) if origin.name == "__init__.py" else [origin]
    else:
        sources, words = [ROOT / words[0]], words[1:]
        if not sources[0].is_file():
            return f"no file {sources[0].relative_to(ROOT)}"
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    known = {"--help", *re.findall(r"--[a-z][a-z-]*", text)}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


# Routes and settings


def test_every_route_is_documented_and_every_documented_route_exists(tmp_path: Path):
    document = create_app(Settings(home=tmp_path)).openapi()
    exist = {(method.upper(), plain(path)) for path, methods in document["paths"].items() for method in methods}
    told = {
        (found[1], plain(found[2]))
        for name in ("service.md", "retrieval.md")
        for span in Page(ROOT / "docs" / name).spans()
        if (found := ROUTE.match(span))
    }
    assert told == exist


def plain(path: str) -> str:
    """A path whatever its parameters are called."""
    return re.sub(r"\{\w+\}", "{}", path)


def test_variables_in_the_documents_are_read_somewhere():
    settings = {f"NML_{name.upper()}" for name in Settings.model_fields}
    places = [ROOT / name for name in ("docker-compose.yml", ".env.example", "Makefile")]
    for folder, pattern in (("docker", "*"), ("service", "*.py"), ("trainer", "*.py"), ("tuner", "*.py")):
        places += [
            path for path in (ROOT / folder).rglob(pattern) if path.suffix in (".py", ".sh", ".yml", ".yaml", "")
        ]
    read = {name for path in places if path.is_file() for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    told = {(page.path.name, name) for page in GUIDES for name in VARIABLE.findall(page.text)}
    assert {each for each in told if each[1] not in settings | read} == set()


# Snippets


def snippets(*languages: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{page.path.relative_to(ROOT)}:{block.line}")
        for page in PAGES
        for block in page.blocks(*languages)
    ]


def test_every_block_names_its_language():
    unnamed = [f"{page.path.name}:{block.line}" for page in PAGES for block in page.blocks("")]
    assert not unnamed, "write ```sh, ```python, ```json, ```yaml or ```text"


@pytest.mark.parametrize("block", snippets("json", "yaml"))
def test_specs_are_valid(block: Block):
    document = json.loads(block.text) if block.language == "json" else yaml.safe_load(block.text)
    if "base" in document:
        parse_sweep(document)
    elif set(document) <= set(TrainSpec.model_fields):
        parse_spec(document)


@pytest.mark.parametrize("block", snippets("python"))
def test_python_parses_and_imports_what_exists(block: Block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for each in node.names:
                importlib.import_module(each.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


@pytest.mark.parametrize("block", snippets("python"))
def test_python_calls_what_the_client_has(block: Block):
    """Every name after `client.` is an attribute or a method somewhere in service/client."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "service" / "client").glob("*.py"))
    named = [name for chain in re.findall(r"\bclient((?:\.\w+)+)", block.text) for name in chain.split(".")[1:]]
    assert [name for name in named if not re.search(rf"def {name}\(|self\.{name} = |^    {name}: ", text, re.M)] == []


@pytest.mark.parametrize("block", [each for each in snippets("python") if each.values[0].runnable])
def test_runnable_python_runs(block: Block, tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stderr


def test_graph_of_the_readme_can_be_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from trainer.data.datasets import load

    (block,) = [each for each in Page(ROOT / "README.md").blocks("python") if each.runnable]
    subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, check=True, timeout=60)
    monkeypatch.chdir(tmp_path)
    graph = load(parse_spec({"data": {"name": "files", "files": {"nodes": "nodes.csv", "edges": "edges.csv"}}}).data)
    assert graph.num_nodes == 300


def test_every_result_names_the_command_that_prints_it():
    sections = re.split(r"^## ", (ROOT / "docs" / "results.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) >= 5
    told = re.compile(r"\bmake \w|python (-m )?tests|\bnml paper")
    assert [each.splitlines()[0] for each in sections if not told.search(each)] == []
