"""What the documents name exists: files, commands, options, parameters, metrics, classes, links."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from backends.asr.metrics import AsrPromptMetrics
from backends.decoder.metrics import DecoderMetrics
from backends.encoder.metrics import EncoderMetrics
from backends.launch.options import parse_options
from backends.launch.parameters import SETTINGS
from backends.launch.repository import find_models
from backends.prompt.service import INPUTS, PromptMetrics
from backends.timeline import STATIONS
from backends.vocoder.service import VocoderMetrics
from client.__main__ import build_parser
from client.bench.stages import ASR_STAGES
from client.bench.stages import STAGES as BENCH_STAGES
from tests.conftest import ROOT

DOCS = [
    ROOT / "README.md",
    ROOT / "checkpoints" / "README.md",
    ROOT / "voices" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in DOCS}
FOLDERS = "backends|benchmarks|checkpoints|client|deploy|docs|ensemble|model_repository|tests|tools|voices"
SOURCES = [
    path for folder in ("backends", "client", "model_repository") for path in sorted((ROOT / folder).rglob("*.py"))
]
CODE = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)

each_document = pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


def code_of(text: str) -> list[str]:
    """Code spans and fenced blocks, with continued lines joined."""
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [piece.replace("\\\n", " ") for piece in [*fenced, *spans]]


def commands(text: str, start: str) -> list[str]:
    """What follows ``start`` on its line, for every command that the document gives."""
    return [
        match.group(1).split(" #")[0].split("|")[0]
        for piece in code_of(text)
        for match in re.finditer(rf"(?:^|[\s/]){start}([^\n]*)", piece)
    ]


def options(command: str) -> set[str]:
    return set(re.findall(r"(?<!\S)--[a-z][a-z-]*", command))


def help_of(*arguments: str) -> str:
    """Help of a ``python -m client`` command."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit):
        build_parser().parse_args([*arguments, "--help"])
    return text.getvalue()


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_document
def test_links_resolve(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[path]):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), link


@each_document
def test_paths_exist(path: Path) -> None:
    named = {
        name.rstrip("./")
        for code in code_of(TEXTS[path])
        # What a command will write need not be there yet.
        for name in re.findall(rf"(?<![\w./$\"-])(?:{FOLDERS})/[\w./-]*", re.sub(r"--json \S+", "", code))
    }
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing


@each_document
def test_commands_exist(path: Path) -> None:
    text = TEXTS[path]
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    for rest in commands(text, "make "):
        assert rest.split()[0] in phony.group(1).split()
    for rest in commands(text, r"python -m "):
        module, *arguments = rest.split()
        parts = module.split(".")
        assert (ROOT.joinpath(*parts) / "__main__.py").exists() or ROOT.joinpath(*parts).with_suffix(".py").exists()
        if module == "client" and arguments:
            assert options(rest) <= options(help_of(arguments[0])) | {"--help"}, rest
        elif module != "client":
            source = ROOT.joinpath(*parts).with_suffix(".py").read_text(encoding="utf-8")
            assert options(rest) <= set(re.findall(r'"(--[a-z-]+)"', source)) | {"--help"}, rest


#: How a document's code writes a file: the options of the client, a redirection, and the writers of Python.
WRITES = re.compile(r'(?:\s-o |\s--json |[^-<>]> |(?:WavWriter|wave\.open)\(")([a-z][\w-]*[./][\w./-]*)')


@each_document
def test_what_an_example_writes_is_ignored_by_git(path: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    written = {name for code in code_of(TEXTS[path]) for name in WRITES.findall(code)}
    # Results are written to be committed.
    written = {name + "x" * name.endswith("/") for name in written if not name.startswith("docs/results/")}
    if path == ROOT / "README.md":
        assert {"hello.wav", "hello.pcm", "talk.srt", "out/x"} <= written
    for name in sorted(written):
        done = subprocess.run(["git", "check-ignore", "--quiet", "--no-index", name], cwd=ROOT, check=False)
        assert done.returncode == 0, name


@each_document
def test_options_of_serve_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"], ROOT)
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    for rest in commands(TEXTS[path], r"python serve\.py"):
        assert options(rest) <= known, rest
    for rest in commands(TEXTS[path], r"python build_engines\.py"):
        source = (ROOT / "backends" / "encoder" / "command.py").read_text(encoding="utf-8")
        assert options(rest) <= set(re.findall(r'"(--[a-z-]+)"', source)), rest
    for stage, key in re.findall(r"--(?:set |serve-arg=)(tts_\w+|asr_\w+|audio_encoder)\.(\w+)=", TEXTS[path]):
        assert key in {field.name for field in dataclasses.fields(SETTINGS[stage])}, f"{stage}.{key}"


@each_document
def test_classes_and_methods_exist(path: Path) -> None:
    for owner, member in re.findall(r"`([A-Z][a-z]\w+)\.([a-z_]\w*)`", TEXTS[path]):
        body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", CODE, re.MULTILINE | re.DOTALL)
        assert body is not None, owner
        assert re.search(rf"\b{member}\b", body.group()), f"{owner}.{member}"


def test_architecture_names_real_classes_and_functions() -> None:
    text = TEXTS[ROOT / "docs" / "architecture.md"]
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", text)) | set(re.findall(r"`([A-Z]\w+)` \(`", text))
    assert len(named) > 20
    unknown = sorted(name for name in named if not re.search(rf"^class {name}\b", CODE, re.MULTILINE))
    assert not unknown
    for name, file in re.findall(r"`(\w+)`\s+\(`([\w/]+\.py)`", text):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:class|def) {name}\b", source, re.MULTILINE), f"{name} in {file}"


def test_every_parameter_is_in_tuning() -> None:
    text = TEXTS[ROOT / "docs" / "tuning.md"]
    for stage, settings in SETTINGS.items():
        section = re.search(rf"^## {stage}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
        assert section is not None
        table = {row[0]: row[1].strip("` ") for row in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section.group(1), re.M)}
        defaults = {
            field.name: f"{field.default:g}"
            if isinstance(field.default, float)
            else (str(field.default).lower() if isinstance(field.default, bool) else str(field.default))
            for field in dataclasses.fields(settings)
        }
        assert table == defaults


def test_every_metric_is_in_architecture() -> None:
    stages = (PromptMetrics(), EncoderMetrics(), DecoderMetrics(), VocoderMetrics(), AsrPromptMetrics())
    code = {metric.name for metrics in stages for metric in metrics}
    rows = re.findall(r"^\| `(voxstage_\w+)` \| (\w+) \|", TEXTS[ROOT / "docs" / "architecture.md"], re.MULTILINE)
    assert sorted(code) == sorted(name for name, _ in rows)
    for metrics in stages:
        for metric in metrics:
            assert dict(rows)[metric.name] == type(metric).__name__.lower().removesuffix("family")
    for path in DOCS:
        assert {name for name in re.findall(r"\bvoxstage_\w+", TEXTS[path]) if not name.endswith("_")} <= code


def test_every_station_and_bench_stage_is_explained() -> None:
    section = re.search(r"^## Timeline\n(.*?)(?=^## )", TEXTS[ROOT / "docs" / "architecture.md"], re.M | re.DOTALL)
    assert section is not None
    assert tuple(re.findall(r"^\| `(\w+)` \|", section.group(1), re.MULTILINE)) == STATIONS
    for heading, known in (("The stage table", BENCH_STAGES), ("Speech to text", ASR_STAGES)):
        section = re.search(rf"^## {heading}\n(.*?)(?=^## )", TEXTS[ROOT / "docs" / "bench.md"], re.M | re.DOTALL)
        assert section is not None
        stages = re.findall(r"^\| ([a-z ]+) \| `(\w+)` … `(\w+)` \|", section.group(1), re.MULTILINE)
        assert tuple(stages) == known


def test_performance_names_the_command_of_every_result() -> None:
    text = TEXTS[ROOT / "docs" / "performance.md"]
    written = set(re.findall(r"--json docs/results/([\w.-]+\.json)", text))
    assert {path.name for path in (ROOT / "docs" / "results").glob("*.json")} <= written
    assert set(re.findall(r"^\| `([\w.-]+\.json)` \|", text, re.MULTILINE)) == written


def test_every_input_and_output_is_in_the_readme() -> None:
    readme = TEXTS[ROOT / "README.md"]
    request = re.search(r"^## Request\n(.*?)(?=^## )", readme, re.MULTILINE | re.DOTALL)
    assert request is not None
    (ensemble,) = [model for model in find_models([ROOT / "ensemble"]) if model.name == "tts"]
    assert ensemble.inputs == INPUTS
    config = (ensemble.folder / "config.pbtxt").read_text(encoding="utf-8")
    outputs = re.findall(r'name: "(\w+)"', config[config.index("output [") : config.index("ensemble_scheduling")])
    assert re.findall(r"^\| `(\w+)`", request.group(1), re.MULTILINE) == [*INPUTS, *outputs]


def test_python_in_the_readme_parses() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXTS[ROOT / "README.md"], re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"python3 -c '\n(.*?)'", TEXTS[ROOT / "README.md"], re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        ast.parse(block)


def test_the_parser_has_the_commands_of_the_docs() -> None:
    parser = build_parser()
    (commands_action,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for path in DOCS:
        named = set(re.findall(r"python -m client (\w+)", TEXTS[path]))
        assert named <= set(commands_action.choices), path
