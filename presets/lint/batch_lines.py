"""Rules for the lines of a shell text: #SBATCH lines, broken lines, and variables that nothing sets (L67 to L69)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from ..finding import Finding, Severity
from ..spelling import nearest
from .batch_options import check_options
from .launcher_calls import LauncherCall, ShellText
from .lint_rules import case, issue
from .shell import Word, names_in, unclosed
from .slurm import Batch, Directive, launch_words, read_batch
from .surroundings import Surroundings

MEETING = frozenset(
    {
        "master-addr",
        "master-port",
        "rdzv-endpoint",
        "node-rank",
        "nnodes",
        "machine-rank",
        "main-process-ip",
    }
)
"""Options that a job cannot do without."""
MOST_BLANKS = 5
MOST_LINES = 300
"""Longest script whose end is checked, in lines."""
TEXTS = frozenset({"output", "error", "job-name", "chdir", "mail-user", "comment", "account", "input"})
"""Options whose value is a free text."""
_APART = re.compile(r"^#[ \t]+SBATCH[ \t]+(-\S+)", re.MULTILINE)
_BROKEN = re.compile(r"[^\\]\\[ \t]+$")
_OPTION = re.compile(r"--[A-Za-z][\w-]*(=.*)?", re.DOTALL)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
OWN_NAMES = re.compile(
    r"(RANDOM|HOSTNAME|HOST|USER|HOME|PWD|UID|PBS_|LSB_|PMI|OMPI_|SLURM|SKYPILOT_|\d|[@*#?!]$)"
)
"""Names that a shell or a scheduler sets."""
_SKY = re.compile(r"SKYPILOT_\w+")


def check_lines(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Check the lines of a text."""
    if around.is_own_job and not around.is_task:
        yield from _directives(script.text, around)
    yield from _broken(script, around)
    yield from _blanks(script, around)
    yield from _unset(script, around)
    yield from _no_script(script, around)
    for call in script.launches:
        yield from _foreign(call, around)
        yield from _behind(call, around)
        yield from _script_word(call, around)
        yield from _exclusive(call, around)
    yield from _unexported(script, around)
    yield from _too_late(script, around)
    yield from _gap(script, around)
    yield from _unclosed(script, around)


def _directives(text: str, around: Surroundings) -> Iterator[Finding]:
    batch = read_batch(text, around.first_line)
    if batch is None:
        match = _APART.search(text)
        if match:
            where = around.at(text.count("\n", 0, match.start()) + around.first_line)
            yield case("L67", "apart", where, {"option": match[1]}, value=match[1], severity="warning")
        return
    if not text.startswith("#!"):
        yield case("L67", "shell", around.at(around.first_line))
    if "\r\n" in text:
        yield case("L67", "dos", around.at(1), {"file": around.file or "FILE"})
    yield from _each(batch, around)
    yield from check_options(batch, text, around)


def _each(batch: Batch, around: Surroundings) -> Iterator[Finding]:
    late = [directive for directive in batch.directives if directive.late]
    for directive in [one for one in batch.directives if not one.late] + late[:1]:
        option = directive.name if directive.name.startswith("-") else f"--{directive.name}"
        where, value = around.at(directive.value.line), directive.value.text
        name, severity, near = _problem(directive)
        if name and not (name == "variable" and around.late is not None):
            shown = option if name in ("unknown", "late") else f"{option} {value}"
            yield case(
                "L67",
                name,
                where,
                {"option": shown, "word": value},
                value=shown,
                severity=severity,
                near=near,
            )


def _problem(directive: Directive) -> tuple[str, Severity, str]:
    value = directive.value.text
    if not directive.name:
        return "" if directive.late or value.startswith("=") else "stray", "error", ""
    if directive.late:
        return "late", "error", ""
    if not directive.known:
        names = launch_words()["slurm"]
        near = nearest(directive.name, [*names["values"], *names["switches"]], 0.8)
        return "unknown" if near else "", "warning", near and f"--{near}"  # plug-ins add options
    if value in ("", "="):
        return "blank" if value else "empty", "error", ""
    if "$" in value:
        return "variable", "warning" if directive.name in TEXTS else "error", ""
    return "", "error", ""


def _broken(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report commands that a line cuts in two, and assignments with blanks."""
    lines = script.text.split("\n")
    offset = around.first_line - 1
    seen = 0
    for command in script.commands:
        first = command.words[0]
        at = first.line - offset - 1
        if _OPTION.fullmatch(first.text) and 0 < at < len(lines) and lines[at].lstrip().startswith("-"):
            before = lines[at - 1]
            if first.line > seen + 1 and before.strip():
                yield _cut(before, first.text, first.line, around)
            seen = first.line
        elif len(command.words) > 1 and command.words[1].text == "=" and _NAME.fullmatch(first.text):
            yield case(
                "L68", "equals", around.at(first.line), {"name": first.text}, value=f"{first.text} ="
            )


def _blanks(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report a blank after the backslash of a command, whose next line is then a command."""
    lines = script.text.split("\n")
    ends = {word.line for command in script.commands for word in command.words if word.text.strip() == ""}
    for line in sorted(ends)[:MOST_BLANKS]:
        at = line - around.first_line
        following = lines[at + 1].strip() if 0 <= at < len(lines) - 1 else ""
        is_option = following.startswith("--")
        if 0 <= at < len(lines) and _BROKEN.search(lines[at]) and following and not is_option:
            yield case("L68", "blank", around.at(line), {"line": line}, value=following.split()[0])


def _cut(before: str, option: str, line: int, around: Surroundings) -> Finding:
    name, option = "option", option.partition("=")[0]
    if before.lstrip().startswith("#"):
        name = "comment"
    elif _BROKEN.search(before):
        name = "blank"
    elif re.search(r"\\[ \t]+#", before):
        name = "remark"
    return case("L68", name, around.at(line - 1), {"option": option, "line": line - 1}, value=option)


def _unset(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report variables that nothing sets, each once."""
    known = {setting.name for setting in script.settings} | set(around.env)
    seen: set[str] = set()
    for call in script.launches:
        for name, use, line in _uses(call):
            if name in known or name in seen or _has_default(name, script.text):
                continue
            seen.add(name)
            yield from _of_name(name, use, around.at(line), call, script, around)
    if around.is_task and not around.batch:
        yield from _sky_names(script, around, known)


def _no_script(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report a launch whose script is in a variable that nothing sets."""
    known = {setting.name for setting in script.settings} | set(around.env)
    if not _is_all_known(script, around) or around.is_task:
        return
    for call in script.launches:
        words = [word.text for word in call.words]
        if any(word.endswith(".py") or word in ("-m", "--module") for word in words):
            continue
        for before, word in itertools.pairwise(["", *words]):
            match = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", word)
            is_value = before.startswith("-") and "=" not in before
            if match and match[1] not in known and not is_value and not OWN_NAMES.match(match[1]):
                facts = {"name": match[1], "program": call.program}
                yield case("L69", "script", around.at(call.line), facts, value=word, severity="warning")
                return


def _uses(call: LauncherCall) -> Iterator[tuple[str, str, int]]:
    """Yield the variables in the words and assignments of a launch: name, the option that uses it, and line."""
    option: str = call.program
    for word in call.words:
        if word.text.startswith("-"):
            option = word.text.partition("=")[0]
        for name in names_in(word.text):
            if not name.startswith("("):
                yield name, option, word.line
        if word.text.endswith(".py"):
            return


def _foreign(call: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Report options before the script that belong to another launcher."""
    names = launch_words()["foreign"].get(call.program, {}) if call.program != "torchrun" else {}
    for before, word in itertools.pairwise((Word("", 0), *call.words)):
        is_unknown = "$" in word.text and not word.text.startswith("-") and not before.text.startswith("-")
        if word.text.endswith(".py") or word.text in ("-m", "--module", "--") or is_unknown:
            return
        name = word.text.partition("=")[0]
        plain = name.lstrip("-").replace("-", "_")
        if not name.startswith("--") or "$" in name:
            continue
        text = f"{call.program} has no option {name} and ends with an error."
        if plain in names:
            yield issue("L3", around.at(word.line), text, value=name, near=f"--{names[plain]}")
        elif _is_unknown(call.program, plain):
            near = nearest(plain, launch_words()["launcher_options"][call.program], 0.8)
            near = near and f"--{near}"
            remedy = "Write it after the script, if it is the script's."
            severity: Severity = "error" if near else "warning"
            yield issue(
                "L3", around.at(word.line), text, value=name, near=near, remedy=remedy, severity=severity
            )


EXCLUSIVE = {
    "accelerate": (("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"),),
    "deepspeed": (
        ("include", "num_gpus"),
        ("include", "num_nodes"),
        ("exclude", "num_gpus"),
        ("exclude", "num_nodes"),
    ),
}
"""Launcher → groups of options, of which it takes one."""


def _exclusive(call: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Report options that exclude each other."""
    end = next((at for at, word in enumerate(call.words) if word.text.endswith(".py")), len(call.words))
    given = {
        word.text.partition("=")[0].lstrip("-"): word.line
        for word in call.words[:end]
        if word.text[:2] == "--"
    }
    for group in EXCLUSIVE.get(call.program, ()):
        both = [name for name in group if name in given]
        if len(both) > 1:
            facts = {"program": call.program, "options": " and ".join(f"--{name}" for name in both)}
            yield case("L75", "both", around.at(given[both[0]]), facts, value=f"--{both[0]} --{both[1]}")
            return


def _script_word(call: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Report `torchrun python train.py`, and `-m train.py`."""
    words = [word.text for word in call.words]
    if "--no_python" in words or "--no-python" in words:
        return
    for before, word in itertools.pairwise((Word("", 0), *call.words)):
        if word.text.endswith(".py"):
            if before.text in ("-m", "--module"):
                name = word.text.removesuffix(".py").replace("/", ".")
                yield case(
                    "L75",
                    "module",
                    around.at(word.line),
                    {"word": word.text, "name": name},
                    value=word.text,
                )
            return
        is_value = before.text.startswith("--") and "=" not in before.text
        if re.fullmatch(r"python[\d.]*", word.text) and not is_value:
            facts = {"program": call.program, "word": word.text}
            yield case("L75", "python", around.at(word.line), facts, value=word.text)
            return


INHERITED = re.compile(r"NCCL_\w+|GLOO_\w+|TORCH_\w+|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS")
"""Variables that only the started program reads."""
OF_RANKS = re.compile(r"MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|LOCAL_RANK")
"""Variables that a program reads without a launcher."""


def _unexported(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report variables for the ranks that are assigned, and neither exported nor used."""
    if not script.started or re.search(r"\bset -(a|o allexport)|declare -x", script.text):
        return
    last = max(call.line for call in script.started)
    for setting in script.settings:
        mentions = len(re.findall(rf"\b{setting.name}\b", script.text))
        if setting.exported or mentions > 1 or setting.line > last or setting.name in around.env:
            continue
        is_of_ranks = OF_RANKS.fullmatch(setting.name) is not None and not script.launches
        if is_of_ranks or INHERITED.fullmatch(setting.name):
            where = around.at(setting.line)
            yield case(
                "L61", "unexported", where, {"name": setting.name}, value=setting.name, severity="warning"
            )


TOO_LATE = re.compile(r"NCCL_\w+|GLOO_\w+|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS")
"""Variables that a launch needs when it starts."""


GAP = re.compile(r"^(?:[ \t]*[A-Za-z_]\w*=\S*[ \t]*\\\n)+[ \t]*\n(?=[ \t]*\w)", re.MULTILINE)


def _gap(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report assignments that an empty line separates from the command that they are for."""
    match = GAP.search(script.text)
    if match is not None:
        line = around.first_line + script.text.count("\n", 0, match.start())
        name = match[0].strip().partition("=")[0]
        yield case("L68", "gap", around.at(line), {"name": name}, value=name)


def _too_late(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report variables that are set only after the last launch in the foreground."""
    starts = [call for call in script.started if not call.command.background and not call.command.branch]
    if not starts or any(call.command.branch for call in script.started):
        return
    last = starts[-1].line
    given = set(around.env) - {setting.name for setting in script.settings}
    earlier = given | {setting.name for setting in script.settings if setting.line <= last}
    for setting in script.settings:
        if setting.line > last and setting.name not in earlier and TOO_LATE.fullmatch(setting.name):
            facts = {"name": setting.name, "line": last, "program": starts[-1].program}
            yield case("L69", "late", around.at(setting.line), facts, value=setting.name)
            return


def _unclosed(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report an if, a loop or a case without its end."""
    is_simple = "`" not in script.text and script.text.count("\n") < MOST_LINES
    branch = unclosed(script.text, around.first_line) if is_simple else None
    if branch is not None:
        facts = {"word": branch.keyword, "end": ENDS.get(branch.keyword, "done")}
        yield case("L68", "unclosed", around.at(branch.line), facts, value=branch.keyword)


ENDS = {"if": "fi", "elif": "fi", "else": "fi", "case": "esac"}


def _is_unknown(program: str, option: str) -> bool:
    """Return True if a launcher that knows all its options does not have this one."""
    known = launch_words()["launcher_options"]
    prefixes = tuple(known.get(f"{program}_prefixes", ()))
    return (
        program in known and option not in known[program] and not (prefixes and option.startswith(prefixes))
    )


def _behind(call: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Report options of the launcher after the script, which gets them."""
    names = {name.replace("-", "_") for name in launch_words()["own_options"].get(call.program, ())}
    at = next((at for at, word in enumerate(call.words) if word.text.endswith(".py")), len(call.words))
    data = around.read(call.words[at].text) if at < len(call.words) and around.read else None
    before = {word.text.partition("=")[0] for word in call.words[:at]}
    for word in call.words[at + 1 :]:
        name = word.text.partition("=")[0]
        plain = name.lstrip("-").replace("-", "_")
        is_known = data is not None and plain.encode() in data.replace(b"-", b"_")
        if name.startswith("--") and plain in names and not is_known and name not in before:
            facts = {"option": name, "script": call.words[at].text, "program": call.program}
            severity: Severity = "warning" if data is None and call.program != "torchrun" else "error"
            yield case("L75", "behind", around.at(word.line), facts, value=name, severity=severity)
            return


def _has_default(name: str, text: str) -> bool:
    return (
        re.search(
            rf"\$\{{{re.escape(name)}:?[-=?+]|\b(read|for|local|mapfile|getopts)\b[^\n]*\b{re.escape(name)}\b",
            text,
        )
        is not None
    )


def _of_name(
    name: str, use: str, where: str, call: LauncherCall, script: ShellText, around: Surroundings
) -> Iterator[Finding]:
    """Report one variable of a launch."""
    options: Sequence[str] = launch_words()["slurm_variables"].get(name, ())
    if options and around.batch is not None:
        given = any(around.batch.has(option) for option in options)
        on_line = any(option in word.text for option in options for word in call.before)
        if not given and not on_line:
            facts = {"name": name, "option": options[0], "use": use}
            yield case("L69", "slurm", where, facts, value=f"${name}", severity="note")
        return
    is_own = OWN_NAMES.match(name) is not None
    if not is_own and use.lstrip("-").replace("_", "-") in MEETING and _is_all_known(script, around):
        severity: Severity = "note" if around.batch else "warning"
        yield case("L69", "nothing", where, {"name": name, "use": use}, value=f"${name}", severity=severity)
        return
    near = nearest(name, [setting.name for setting in script.settings], 0.86)
    is_counted = re.sub(r"\d", "", near or "") == re.sub(r"\d", "", name)
    if near and not is_counted and len(name) > 4 and not name.startswith(("SLURM", "SKYPILOT")):
        yield case(
            "L69",
            "near",
            where,
            {"name": name, "use": use},
            value=f"${name}",
            near=f"${near}",
            severity="warning",
        )


def _is_all_known(script: ShellText, around: Surroundings) -> bool:
    """Return True if the text of a job sets all its variables itself, as far as they are not the scheduler's."""
    is_job = around.batch is not None or (around.is_task and not around.in_image)
    reads_more = re.search(
        r"^\s*(source|\.|eval|export \$|set -a|read|mapfile)\s", script.text, re.MULTILINE
    )
    return is_job and around.is_own_job and around.late is None and reads_more is None


def _sky_names(script: ShellText, around: Surroundings, known: set[str]) -> Iterator[Finding]:
    """Report variables of SkyPilot that do not exist."""
    names = launch_words()["sky"]["variables"]
    for match in _SKY.finditer(script.text):
        name = match[0]
        if name in names or name in known:
            continue
        known.add(name)
        near = nearest(name, names, 0.6)
        line = around.first_line + script.text.count("\n", 0, match.start())
        yield case(
            "L69",
            "sky",
            around.at(line),
            {"name": name, "use": name},
            value=f"${name}",
            near=near and f"${near}",
        )
