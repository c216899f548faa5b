"""The documentation: its Python runs, its commands parse, its pages and names are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinysubnets
import trackers
from quick import mostly_slow
from tinysubnets import cli, networks
from tinysubnets.experiments import methods
from tinysubnets.experiments.recipe import load
from tinysubnets.experiments.search_space import default_space
from tinysubnets.nn.architecture import Architecture

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
SOURCES = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# Only these hold Python that is meant to be run from top to bottom.
GUIDE = [p for p in SOURCES if "```python\n" in p.read_text(encoding="utf-8")]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return blocks_of(path.read_text(encoding="utf-8"), language)


def blocks_of(text: str, language: str) -> list[str]:
    """The fenced blocks of a language in a text."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", mostly_slow(GUIDE, quick=[ROOT / "README.md"]), ids=lambda p: p.name
)
def test_python_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logged = trackers.stand_in(monkeypatch)
    space: dict[str, object] = {"__name__": "documentation"}
    for number, text in enumerate(blocks(path, "python"), 1):
        exec(compile(text, f"{path.name}, block {number}", "exec"), space)
    if path.name == "python.md":
        assert all(len(calls) == 4 for calls in logged.values())  # one for each epoch


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_commands_exist_with_their_options(path: Path) -> None:
    lines = [
        line.removeprefix("$ ").split("  #")[0]
        for block in (*blocks(path, "console"), *blocks(path, "sh"), *blocks(path, "bash"))
        for line in block.replace("\\\n", " ").splitlines()
    ]
    for line in lines:
        words = shlex.split(line)
        if words[:1] == ["tsn"] and words[1:2] != ["--help"] and "--help" not in words:
            cli.parser().parse_args(words[1:])


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_toml_examples_are_toml(path: Path) -> None:
    for text in blocks(path, "toml"):
        tomllib.loads(text)


def test_links_between_pages_lead_somewhere() -> None:
    for path in SOURCES:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_front_page_shows_what_the_top_of_the_readme_shows() -> None:
    """A sentence, a picture, a result and two commands, the same in both places."""
    front = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    top = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[0]
    sentence, result = re.findall(r"\*\*(.+?)\*\*", front, re.S)
    assert f"**{sentence}**" in top and f"**{result}**" in top
    assert "instead of" in result
    for text in (front, top):
        assert "images/accuracy-against-bytes.svg" in text
        (commands,) = blocks_of(text, "console")
        assert len(commands.strip().splitlines()) == 2


def test_the_readme_names_every_command() -> None:
    names = re.findall(r"^    ([a-z]+) ", cli.parser().format_help(), re.M)
    assert "run" in names and "remove" in names
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`tsn {name}" not in text] == []


HEADLINES = {
    "permuted MNIST": "Permuted MNIST, ten tasks",
    "split CIFAR-100": "Split CIFAR-100, ten tasks of ten classes",
}


def headline_rows(text: str, title: str) -> list[dict[str, str]]:
    """The rows of a table of results, by their headings."""
    lines = text.partition(f"**{title}**\n\n")[2].partition("\n\n")[0].splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [dict(zip(table[0], row, strict=True)) for row in table[2:]]


def number(cell: str) -> float:
    return float(cell.split(" ")[0])


def test_the_result_on_the_front_page_is_that_of_the_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told = " ".join(text.partition("## Install")[0].split())
    for name, title in HEADLINES.items():
        row = headline_rows(text, title)[0]
        accuracy, unit = number(row["task known: %"]), row["size"].split(" ")[1]
        wanted = f"{name} in {number(row['size']):.0f} {unit}"
        assert wanted in told
        assert f"{accuracy:.1f} %" in told.partition(wanted)[2][:70]
    assert f"instead of {4 * 129_280 / 1000:.0f} kB for one dense network" in told
    # The rival, at its best.
    rows = re.findall(r"\| separate networks, .*\| ([\d.]+) ± \S+ \| ([\d.]+) kB \|", text)
    accuracy, size = max((float(a), float(s)) for a, s in rows)
    assert f"have {accuracy:.1f} % in {size:.0f} kB" in told


def test_the_front_page_says_where_rivals_win() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told = " ".join(text.partition("## Install")[0].split())
    lines = text.splitlines()

    def cells(line: str) -> list[str]:
        return [cell.strip(" *") for cell in line.split("|")[1:-1]]

    def row(begin: str) -> int:
        return next(i for i, line in enumerate(lines) if line.startswith(begin))

    mnist, cifar = (headline_rows(text, title) for title in HEADLINES.values())
    (rival,) = (r for r in mnist if r["run"].startswith("ten separate networks of 2 bits"))
    assert f"{number(rival['task known: %']):.1f} % in {number(rival['size']):.0f} kB" in told
    dense = cells(lines[row("| independent | ")])
    assert f"{number(dense[3]):.1f} % in {number(dense[8]) / 1000:.1f} MB" in told
    unnamed = [number(rows[0]["class-IL %"]) for rows in (mnist, cifar)]
    assert "falls to {:.1f} % on permuted MNIST and to {:.1f} % on split".format(*unnamed) in told
    # What the text says of the folded table.
    better = set(re.findall(r"^\| ([\w-]+) \| \d+ \|[^|]*\| \*\*", text, re.M))
    said = re.search(r"On permuted MNIST, ([^;]*) clearly better than ([^;]*);", text)
    assert said is not None and better == set(re.findall(r"`([\w-]+)`", said[0])) - {"tsn-wr"}


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: tinysubnets\.(?:\w+\.)*(\w+)$", text, re.M))
    errors = {n for n in tinysubnets.__all__ if n.endswith(("Error", "Warning"))}
    assert "errors" in listed
    missing = set(tinysubnets.__all__) - listed - errors - {"__version__"}
    assert not missing


def test_every_page_is_in_the_navigation() -> None:
    yaml = pytest.importorskip("yaml")
    values = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        parts = node.values() if isinstance(node, dict) else node
        return [leaf for part in parts for leaf in leaves(part)]  # type: ignore[attr-defined]

    assert set(leaves(values["nav"])) == {p.name for p in PAGES}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site is built by `make docs`, which installs mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path in PAGES:
        place = "index.html" if path.stem == "index" else f"{path.stem}/index.html"
        assert "<h1" in (tmp_path / place).read_text(encoding="utf-8")
    reference = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert 'id="tinysubnets.method.learner.TinySubNets"' in reference
    assert "split-cifar100" in (tmp_path / "measured" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_files_that_are_named_exist(path: Path) -> None:
    """Backticked paths such as `nn/topk.py` are files of the package or of the repository."""
    if path.name == "LOG.md":  # it names files as they were
        return
    text = path.read_text(encoding="utf-8")
    folders = path.name in ("README.md", "ARCHITECTURE.md")  # others name folders of runs
    for name in re.findall(r"`([\w./-]+\.py|[a-z_]+/)`" if folders else r"`([\w./-]+\.py)`", text):
        places = (ROOT, ROOT / "src" / "tinysubnets")
        assert any((place / name).exists() for place in places), f"{path.name}: no {name}"


def test_no_page_or_help_speaks_of_a_setting_by_its_old_name() -> None:
    """Those that mean nothing else today; the changelog and the log may."""
    from tinysubnets import config

    today = {new.rpartition(".")[2] for new in config.RENAMED.values()}
    old = {name.rpartition(".")[2] for name in config.RENAMED} - today
    old -= {"setting", "scores", "memory", "strength", "distillation", "balance"}  # plain words too
    sources = [p for p in SOURCES if p.name != "LOG.md"]
    sources += [p for p in (ROOT / "src").rglob("*.*") if p.suffix in (".py", ".toml")]
    for path in sources:
        if path.name == "config.py":
            continue
        found = old & set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        assert not found, f"{path.name}: {sorted(found)}"


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """The cells of a table behind its first column, by the names in code there."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    table = text[text.index(f"\n| {heading}") :].split("\n\n")[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {name: row[1:] for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def test_what_is_sent_in_a_step_is_said_of_every_network() -> None:
    rows = rows_of("scaling.md", "network, as it is built")
    assert set(rows) == set(networks.names())
    for name, (masked, dense, *_) in rows.items():
        net = networks.build(name)
        shared = Architecture(net).num_shared
        all_of_it = sum(p.numel() for p in net.parameters())
        for said, count in ((masked, all_of_it + shared), (dense, all_of_it)):
            number, unit = said.split()
            digits = len(number.partition(".")[2])
            assert unit == "MB" and float(number) == round(4 * count / 1e6, digits), name


def test_the_search_space_of_every_method_is_in_the_table() -> None:
    rows = rows_of("commands.md", "method | its own space")
    for name in methods.METHODS:
        recipe = load("permuted-digits", method=name)
        table = methods.method(name).table
        dials = default_space(recipe, "mlp", 5)
        own = {k.partition(".")[2]: v for k, v in dials.items() if k.startswith(f"{table}.")}
        assert bool(own) == (name in rows), name
        for key, allowed in own.items():
            assert f"`{key}`" in rows[name][0], name
            if table not in ("packnet", "ada-qpacknet"):  # as many parts as there are tasks
                assert allowed.replace("0.0..", "0..") in rows[name][0], name
