"""The rules of the house that a machine can check: who imports whom, what loads what, and what texts say.

`make imports` checks that imports between the rooms go one way.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from each import for_each

pytestmark = pytest.mark.xdist_group("rooms")  # one process parses all modules

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("presets", "runners", "tui")
TOP = {*ROOMS, "tests", "docs", "pyproject.toml", "Makefile"} | {
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
}


@functools.cache
def sources(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms or ROOMS for path in (ROOT / room).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    try:
        return ast.parse(text, str(path))
    except SystemError:
        # CPython 3.11 miscounts its depth when garbage is collected meanwhile ("AST constructor recursion depth
        # mismatch", https://github.com/python/cpython/issues/106905); each parse begins to count anew.
        return ast.parse(text, str(path))


@dataclass
class Imports:
    """What a module imports, wherever in it."""

    absolute: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """Dotted names of our own modules, without `distui`."""
    late: set[str] = field(default_factory=set)
    """Those of them that wait until a function runs."""


@functools.cache
def imports(path: Path) -> Imports:
    found = Imports()
    for node, is_late in statements(parsed(path)):
        if isinstance(node, ast.Import):
            found.absolute.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.absolute.add(node.module or "")
        elif isinstance(node, ast.ImportFrom):
            own = own_modules(path, node)
            found.own |= own
            if is_late:
                found.late |= own
    return found


def statements(node: ast.AST, is_late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All statements below a node, and whether they wait until a function runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child, is_late
            yield from statements(
                child, is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            )


def own_modules(path: Path, node: ast.ImportFrom) -> set[str]:
    """The modules that a relative import names."""
    found = set()
    folder = path.relative_to(ROOT).parent.parts
    base = [*folder[: len(folder) - node.level + 1], *(node.module.split(".") if node.module else [])]
    for alias in node.names:
        whole = [*base, alias.name]
        is_module = ROOT.joinpath(*whole).with_suffix(".py").exists() or ROOT.joinpath(*whole).is_dir()
        found.add(".".join(whole if is_module else base))
    return found


def importers(package: str) -> set[str]:
    """Modules of the rooms that import a package."""
    return {
        name(path)
        for path in sources()
        if any(found == package or found.startswith(f"{package}.") for found in imports(path).absolute)
    }


def outside(paths: Iterable[Path], allowed: set[str]) -> set[tuple[str, str]]:
    """Imports of packages that are not allowed there."""
    return {
        (name(path), found)
        for path in paths
        for found in imports(path).absolute
        if found.partition(".")[0] not in allowed
    }


@pytest.mark.real
def test_the_top_level_is_fixed() -> None:
    top = {path.partition("/")[0] for path in kept_files()}
    assert {path for path in top if not path.startswith(".")} == TOP


def test_inside_the_rooms_imports_are_relative() -> None:
    """An absolute import would make every class twice for a type checker that is given paths."""
    assert len(sources()) > 100
    assert [
        name(path)
        for path in sources()
        if any(found.partition(".")[0] in ("distui", *ROOMS) for found in imports(path).absolute)
        and path != ROOT / "presets/examples/chargpt.py"  # a user's script: it imports what is installed
    ] == []


def test_heavy_packages_have_one_home() -> None:
    ranks = ("runners/inrank/", "presets/examples/")
    homes: dict[str, tuple[str, ...]] = {
        "torch": ranks,
        "numpy": ranks,
        "textual": ("tui/",),
        "pynvml": ("runners/telemetry/nvml.py",),
        "sky": ("runners/sky/sdk.py",),
        **dict.fromkeys(("mcp", "mcp_types", "pydantic", "anyio"), ("tui/mcp/",)),
        **dict.fromkeys(("opentelemetry", "google"), ("runners/telemetry/otlp_process.py",)),
        "apprise": ("runners/notify/apprise_process.py",),
        **dict.fromkeys(("aiohttp", "aiohttp_jinja2", "jinja2", "textual_serve"), ("tui/browser/",)),
    }
    assert importers("torch")
    for package, home in homes.items():
        assert all(path.startswith(home) for path in importers(package)), package


def test_the_presets_need_only_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "yaml"}  # PyYAML only in functions: see WITHOUT
    own = [path for path in sources("presets") if "examples" not in path.parts]
    assert outside(own, allowed) == set()


def test_what_ranks_execute_is_standard_library_and_torch_on_python_3_9() -> None:
    """The training environment need not have distui, nor anything that distui needs."""
    paths = [path for path in sources("runners") if "inrank" in path.parts]
    assert outside(paths, {*sys.stdlib_module_names, "torch", "distui_inrank"}) == set()
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for type checkers count, too."""
    graph = {}
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[module] = imports(path).own - {module}
    TopologicalSorter(graph).prepare()


HELP = """
import contextlib, io
from distui.tui.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({words!r})
"""
TRAINING = {"torch", "numpy", "sky", "pynvml"}
AGENT = "import distui.runners.agent.__main__, distui.runners.node.job"
WITHOUT: dict[str, set[str]] = {
    AGENT: {"torch", "numpy", "textual", "pynvml", "opentelemetry", "apprise", "yaml"},
    **{f"import distui.tui.{module}": TRAINING for module in ("cli", "source")},
    **{
        HELP.format(words=words): {"textual", "rich", "msgspec", "psutil", "asyncio", "torch"}
        for words in (["--help"], ["--version"], ["launch", "--help"])
    },
    "import distui.tui.app, distui.tui.screens.run, distui.tui.screens.launch": {
        *TRAINING,
        "psutil",
        "tomlkit",
    },
    "import distui": {"distui.presets", "distui.runners", "distui.tui", "asyncio", "msgspec"},
    "import distui.api": {*TRAINING, "textual", "rich", "distui.tui"},
    "import distui.tui.verbs.logs": {"distui.runners.hub", "distui.presets.plan"},  # a fifth of the start
}
"""Modules that a new interpreter does not load for this code."""


@pytest.mark.real
@for_each(("code", "unwanted"), WITHOUT.items())
def test_each_program_loads_only_what_it_needs(code: str, unwanted: set[str]) -> None:
    report = "import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    beginnings = tuple(f"{name}." for name in unwanted)
    assert [name for name in done.stdout.split() if f"{name}.".startswith(beginnings)] == []


LATE_IMPORTS = {
    # Verbs, screens and kinds of runners, of which one process needs one.
    "tui/__main__.py": {"tui.cli"},
    "tui/app.py": {"tui.screens.launch", "tui.screens.rerun"},
    "tui/arguments.py": {"presets.request"},  # only verbs that launch have its options
    "tui/command_words.py": {"presets.request"},
    "tui/verbs/completion.py": {
        "presets.load", "presets.model", "presets.nccl", "runners.notify.rule_words",
        "runners.notify.channels", "runners.run.run_notes", "runners.telemetry.metric_names", "tui.rows.run_filter",
        "tui.rows.runs",
    },
    "tui/verbs/demo.py": {
        "runners.watch.simulated_link", "runners.watch.simulated_training", "tui.simulated_source",
        "tui.verbs.cockpit", "tui.verbs.demo_launch",
    },
    "tui/verbs/launch.py": {
        "runners.comparison.adoption_trial", "runners.comparison.rerun_changes", "runners.launch.check",
        "tui.rows.trial", "tui.verbs.cockpit", "tui.verbs.foreground", "tui.verbs.wait",
    },
    "tui/verbs/listing.py": {"runners.launch.hosts", "tui.other_hosts"},
    "tui/verbs/logs.py": {"runners.hub.launch_order"},
    "tui/verbs/mcp.py": {"tui.mcp.tools"},  # an extra, and slow to load
    "tui/verbs/serve.py": {"tui.browser.server"},  # an extra
    "tui/verbs/presets.py": {
        "presets.exports", "presets.guided", "presets.imports", "runners.launch.preset_of_request",
        "runners.run.run_directories",
    },
    "tui/verbs/cockpit.py": {
        "runners.launch.hosts", "runners.reports.bundle_reader", "runners.run.wire.shared_link", "tui.app",
        "tui.shared_source", "tui.source",
    },
    "tui/verbs/run_or_bundle.py": {"runners.reports.bundle_reader"},
    # What an agent asks once, and what asks other hosts.
    "runners/agent/server.py": {"runners.doctor.node_facts"},
    "runners/reports/watched_jobs.py": {"runners.watch.watch_link"},
    "runners/comparison/loading.py": {"runners.comparison.elsewhere"},
    # What a cockpit needs once somebody launches, watches, or opens a shell.
    "tui/screens/cockpit_commands.py": {"tui.rows.dumps"},
    "tui/screens/run_keys.py": {"tui.screens.side_by_side"},
    "tui/screens/runs.py": {"tui.screens.side_by_side"},
    "tui/keymap_file.py": {"presets.load"},
    "tui/nccl_sources.py": {"runners.diagnosis.read_logs"},
    "tui/other_hosts.py": {"runners.launch.hosts"},
    "tui/source.py": {
        "runners.node.routes", "runners.hub.sky_cloud", "runners.launch.launch_form",
        "runners.launch.preset_library", "runners.launch.recent", "runners.comparison.rerun_changes",
        "runners.removal.retention", "runners.removal.run_removal", "runners.watch.watch_link",
    },
    # The rules of diagnosis take a while to load.
    "runners/agent/node_agent.py": {"runners.diagnosis.detectors"},
    "runners/agent/runner_process.py": {"presets.plan_json"},  # `distui logs` needs no plan
    "runners/agent/__main__.py": {"runners.agent.node_agent"},  # the runner starts first
    # `ls` and `status` read runs without presets, plans, launches and hubs.
    "runners/run/daemon.py": {"presets.plan_json"},
    "runners/run/history.py": {"presets.plan_json"},
    "runners/hub/__main__.py": {"runners.hub.cluster_launch"},
    "runners/launch/sky.py": {"presets.task_summary"},
    # Every Python below a command loads this, and few become ranks.
    "runners/inrank/joining.py": {"runners.inrank.control", "runners.inrank.hook"},
    # What acts on torch is loaded once the script has imported that.
    "runners/inrank/adopt/arming.py": {"runners.inrank.adopt.call"},
    "runners/node/local_agent.py": {"presets.plan", "presets.plan_json", "runners.node.routes"},
    "runners/node/script_files.py": {"presets.script_support", "presets.script_tree"},
}  # fmt: skip
"""Imports of our own that wait until a function runs, each for the time that a start takes; there are no others."""


def test_imports_that_wait_are_listed() -> None:
    found = {name(path): late for path in sources() if (late := imports(path).late)}
    assert found == LATE_IMPORTS


@for_each("page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md"])
def test_modules_that_the_documentation_names_exist(page: Path) -> None:
    there = {path.name for path in sources(*ROOMS, "tests")} | {
        "train.py",
        "hatch_build.py",
    }
    others = re.compile(r"^## Scripts of public projects$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\b[a-z_0-9]+\.py\b", others.sub("", page.read_text()))) <= there


def heading_anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@for_each(
    "page",
    [*sorted(ROOT.glob("docs/**/*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))],
)  # fmt: skip
def test_links_of_the_documentation_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in heading_anchors(target)):
            broken.append(link)
    assert broken == []


def kept_files() -> list[str]:
    """Every file that git keeps, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of files to look through")
    return listed.stdout.splitlines()


def texts() -> Iterator[tuple[str, str]]:
    """Every text file that git keeps, or would."""
    for path in kept_files():
        full = ROOT / path
        if full.is_file() and not full.is_symlink() and full.suffix not in (".png", ".gz"):
            yield path, full.read_text(encoding="utf-8", errors="replace")


@pytest.mark.real
def test_no_file_knows_its_machine_or_has_an_unfinished_note() -> None:
    """No path of this checkout, no home directory, no package index but the default one."""
    places = re.compile(
        r"(?<![\w.~$}])/(?:home|Users)/\w|https?://[\w.-]*(?:artifactory|nexus|pypi|mirror)"
    )
    here = re.compile(re.escape(str(ROOT)) + r"(?![\w-])")
    notes = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found, unfinished = [], []
    for path, text in texts():
        if (places.search(text) or here.search(text)) and "corpus/" not in path:
            found.append(path)
        if notes.search(text):
            unfinished.append(path)
    assert found == []
    assert unfinished == []


BANNED_PHRASES = (
    "look who ends", "let it go on with", "only to whoever",
    "once more, please", "in the way and is no", "says nothing of", "next try is on its way",
    "no way to node", "nobody saw how", "which distui did not send", "processor time", "every look",
    "say less than they could", "keeps Python's lock", "a flood on a running",
    "hosts have what they have", "everything that is true", "before it costs", "look finds",
    "down after so long", "was ended by SIG", "go on with what comes", "here stands", "wrong is said", "is said because",
    "is known to be wrong", "that these keep", "look only", "give up then", "line tells of", "asked for by",
    "ended nobody saw", "what was not saved", "told in full", "the runs there are", "no runs there", "not known: give",
)  # fmt: skip
"""Turns of phrase that a reader has to translate: CONTRIBUTING, "Words", says how to put it instead."""


def test_no_text_uses_a_banned_phrase() -> None:
    kept = {
        path
        for folder in (*ROOMS, "docs")
        for suffix in ("*.py", "*.toml", "*.md", "*.sh")
        for path in (ROOT / folder).rglob(suffix)
    }
    read = [*kept - {ROOT / "docs/development/decisions.md"}, ROOT / "README.md"]
    assert len(read) > 200
    assert [
        (name(path), phrase)
        for path in read
        for phrase in BANNED_PHRASES
        if phrase in path.read_text(encoding="utf-8")
    ] == []
