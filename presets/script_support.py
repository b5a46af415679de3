"""Determine which parts of a preset a script obeys, from its syntax tree. The script is not executed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .launchers.deepspeed import OPTION, VARIABLE, option_at
from .model import StrategyKind
from .script_tree import MOST_FILES, ScriptTree, read
from .text_formats import Unreadable

_DEEPEST = 8
"""Longest chain of assignments to follow."""
_EMPTY = ("", "none", "None", "null", "False", "false")
"""Option values that count as no value."""


@dataclass(frozen=True, slots=True)
class Option:
    """An argparse option of the script."""

    names: tuple[str, ...]
    """With their dashes. The last one is the name in sentences."""
    dest: str
    action: str
    default: ast.expr | None

    @property
    def name(self) -> str:
        return self.names[-1]


@dataclass(frozen=True, slots=True)
class Value:
    """A statically known argument value."""

    given: bool | None
    """False for None and False, True for any other value, None if only running the script shows it."""
    unless: str = ""
    """What would change the value, as the end of "unless …"."""


TRUE, FALSE = Value(True), Value(False)


class Values:
    """Evaluates expressions of one script that is launched with `args`."""

    def __init__(self, script: Script, args: Sequence[str]) -> None:
        self.options, self.assigned = script.options, script.assigned
        self._by_dest: dict[str, list[Option]] = {}
        for option in script.options:
            self._by_dest.setdefault(option.dest, []).append(option)
        self._words = _words_of_options(script.options, args)

    def of(self, node: ast.expr, deep: int = 0) -> Value:
        """Return the value of an expression."""
        if isinstance(node, ast.Constant):
            is_nothing = node.value is None or node.value is False or node.value == ""
            return FALSE if is_nothing else TRUE
        if isinstance(node, ast.Call | ast.Dict | ast.List | ast.Tuple):
            return _unknown(node) if _reads(node) else TRUE
        return (self._followed(node, deep) if deep < _DEEPEST else None) or _unknown(node)

    def _followed(self, node: ast.expr, deep: int) -> Value | None:
        """Return the value of a name, an option or a conditional expression, or None if it is unknown."""
        if isinstance(node, ast.IfExp):
            branches = {self.of(node.body, deep + 1), self.of(node.orelse, deep + 1)}
            return branches.pop() if len(branches) == 1 else None
        if isinstance(node, ast.Attribute | ast.Subscript):
            option = self.option(_key(node))
            return self.of_option(option, deep) if option else None
        values = self.assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        return self.of(values[0], deep + 1) if len(values) == 1 else None

    def option(self, dest: str) -> Option | None:
        """Return the only option with this `dest` in the parser's namespace, or None for no option and for several."""
        options = self._by_dest.get(dest, [])
        return options[0] if len(options) == 1 else None

    def of_option(self, option: Option, deep: int = 0) -> Value:
        """Return the value of an option in this launch."""
        word = self._words.get(option)
        if option.action in ("store_true", "store_false"):
            is_on = (word is not None) == (option.action == "store_true")
            return TRUE if is_on else Value(False, f"{option.name} is given")
        if word is None:
            usual = FALSE if option.default is None else self.of(option.default, deep + 1)
            return Value(usual.given, f"{option.name} is given")
        return FALSE if word in _EMPTY else TRUE


def _unknown(node: ast.expr) -> Value:
    is_named = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    return Value(None, f"{_short(node)} {'is set' if is_named else 'comes to something'}")


def _words_of_options(options: Sequence[Option], args: Sequence[str]) -> dict[Option, str]:
    """Return the argument that a command line gives to each option, or "" for an option without one."""
    words: dict[Option, str] = {}
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not equals:
            behind = args[at + 1] if at + 1 < len(args) else ""
            value = "" if behind.startswith("--") else behind
        words |= dict.fromkeys(_meant(name, options), value)
    return words


def _meant(word: str, options: Sequence[Option]) -> list[Option]:
    """Return the options that argparse matches to a word, also by an unambiguous prefix."""
    exact = [option for option in options if word in option.names]
    if exact or not word.startswith("--") or len(word) < 3:
        return exact
    fitting = [option for option in options if any(name.startswith(word) for name in option.names)]
    return fitting if len(fitting) == 1 else []


def _option(node: ast.Call) -> Option | None:
    if _last(node.func) not in ("add_argument", "add", "add_arg"):
        return None
    names = [_literal(arg, "") for arg in node.args]
    if not names or not all(name.startswith("-") for name in names):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    long = next((name for name in names if name.startswith("--")), names[0])
    return Option(
        tuple(sorted(names, key=lambda name: name == long)),  # the long name is the last one
        _literal(keywords.get("dest"), long.lstrip("-").replace("-", "_")),
        _literal(keywords.get("action"), "store"),
        keywords.get("default"),
    )


def _literal(node: ast.expr | None, default: str) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else default


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                yield from _parts(target)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.target if isinstance(node, ast.AugAssign) else node.value
    elif isinstance(node, ast.arg):
        yield node.arg, ast.Name(node.arg)
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _parts(node.target)


def _parts(target: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a tuple or a loop, whose values are never literals."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id, node


def _key(node: ast.Attribute | ast.Subscript) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _reads(node: ast.expr) -> bool:
    """Return True if a call reads a value and creates none: os.environ.get("X"), getattr(args, "x"), bool(x)."""
    return isinstance(node, ast.Call) and not _last(node.func)[:1].isupper() and _last(node.func) != "dict"


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:39] + "…"


PARALLELIZE = "distui.runners.inrank.parallelize.parallelize"
STEPS = "distui.runners.inrank.parallelize.forward_backward"
"""distui's own calls. A script that calls the second one lets the preset order forward and backward passes."""
COPY, COPIED_STEPS = "parallelize.parallelize", "parallelize.forward_backward"
"""The two calls, from a copy of the folder next to the script."""

FRAMEWORKS: Mapping[str, tuple[str, str, str]] = {
    "DistributedDataParallel": ("torch.nn", "ddp", "wraps its model in DistributedDataParallel"),
    "FullyShardedDataParallel": (
        "torch.distributed.fsdp",
        "fsdp1",
        "wraps its model in FullyShardedDataParallel",
    ),
    "fully_shard": ("torch.distributed", "fsdp2", "shards its model with fully_shard"),
    "ZeroRedundancyOptimizer": (
        "torch.distributed.optim",
        "zero1",
        "shards its optimizer with ZeroRedundancyOptimizer",
    ),
    "parallelize_module": ("torch.distributed", "", "divides its model with parallelize_module"),
    "initialize": ("deepspeed", "deepspeed", "hands its model to DeepSpeed (deepspeed.initialize)"),
    "Accelerator": ("accelerate", "", "leaves it to Accelerate (Accelerator)"),
}
"""Last part of a call's full name → its package, its kind of strategy ("" for none), and what a calling script does."""

TRAINERS = ("transformers", "trl")
"""Packages whose classes …Trainer use Accelerate."""
LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer is Lightning's."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    full: str
    """Full dotted name, or "" if no import explains it."""
    last: str
    """Last part of the name in the source."""
    line: int
    node: ast.Call

    def keyword(self, *names: str) -> ast.keyword | None:
        """Return the first keyword argument of one of these names that is neither None nor False."""
        for keyword in self.node.keywords:
            nothing = isinstance(keyword.value, ast.Constant) and keyword.value.value in (None, False)
            if keyword.arg in names and not nothing:
                return keyword
        return None

    def first_text(self) -> str:
        """Return the first argument if it is a text, else ""."""
        first = self.node.args[0] if self.node.args else None
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The facts of a script's source."""

    calls: tuple[ScriptCall, ...]
    """In source order."""
    texts: frozenset[str]
    options: tuple[Option, ...]
    assigned: Mapping[str, Sequence[ast.expr]]
    """Name → the expressions assigned to it."""
    tree: ScriptTree

    def find(self, *fulls: str) -> ScriptCall | None:
        """Return the first call of one of these full names."""
        return next((call for call in self.calls if call.full in fulls), None)


def parse(source: str | bytes) -> Script:
    """Parse a script. Raises Unreadable."""
    return _script(read(source))


@functools.lru_cache(maxsize=MOST_FILES + 14)
def _script(tree: ScriptTree) -> Script:
    names = _FrameworkNames(tree)
    calls = sorted(tree.of(ast.Call), key=lambda call: (call.lineno, call.col_offset))
    texts = (node.value for node in tree.of(ast.Constant))
    assigned: dict[str, list[ast.expr]] = {}
    for node in tree.nodes:
        for name, value in _assignments(node):
            assigned.setdefault(name, []).append(value)
    return Script(
        tuple(ScriptCall(names.full(node.func), _last(node.func), node.lineno, node) for node in calls),
        frozenset(text for text in texts if isinstance(text, str)),
        tuple(option for node in calls if (option := _option(node)) is not None),
        assigned,
        tree,
    )


def local_imports(source: str | bytes) -> list[str]:
    """Return paths, relative to the script's folder, that its imports would load if they exist. Never raises."""
    try:
        tree = read(source)
    except Unreadable:
        return []
    modules: list[str] = []
    for node in tree.of(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif node.level <= 1:
            inside = f"{node.module}." if node.module else ""
            modules += [node.module] if node.module else []
            modules += [inside + alias.name for alias in node.names if alias.name != "*"]
    return [f"{module.replace('.', '/')}.py" for module in dict.fromkeys(modules)]


def framework(full: str) -> str | None:
    """Return what a script does that calls this name, or None if the call implies no strategy."""
    package, _, last = full.rpartition(".")
    top = package.split(".", 1)[0]
    if last in ("Trainer", "Fabric") and top in LIGHTNING:
        return f"leaves it to Lightning ({last})"
    if top in TRAINERS and last.endswith("Trainer"):
        return f"leaves it to the {top} {last}"
    return wraps(full)[1] or None


def wraps(full: str) -> tuple[str, str]:
    """Return the strategy kind of a call and what a calling script does, or two empty texts."""
    package, _, last = full.rpartition(".")
    home, kind, what = FRAMEWORKS.get(last, ("", "", ""))
    inside = home and (package == home or package.startswith(f"{home}."))
    return (kind, what) if inside else ("", "")


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


MOST_STARS = 50
"""Most star imports to search for a name."""


class Names:
    """Resolves names by the imports of a script. `relative`: also by relative imports."""

    def __init__(self, tree: ScriptTree, *, relative: bool = True) -> None:
        self._names: dict[str, str] = {}
        self._stars: list[str] = []
        self.imported: dict[str, int] = {}
        """Module as written, with its leading dots → line of its first import."""
        for node in tree.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                self._add_modules(node)
            elif relative or not node.level:
                self._add_members(node)

    def _add_modules(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".", 1)[0]
            self.imported.setdefault(alias.name, node.lineno)
            self._names.setdefault(alias.asname or top, alias.name if alias.asname else top)

    def _add_members(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.imported.setdefault(module, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                self._stars.append(module)
            else:
                self._names.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.AST) -> str:
        """Return the full dotted name of `node`, or "" if no import explains it. A star import may."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self._names.get(node.id) or self._starred(node.id)
        return ".".join([first, *reversed(parts)]) if first else ""

    def _starred(self, name: str) -> str:
        return f"{self._stars[-1]}.{name}" if self._stars else ""


class _FrameworkNames(Names):
    """Resolves also subclasses of classes that wrap a model. A star import explains only names that distui knows."""

    def __init__(self, tree: ScriptTree) -> None:
        super().__init__(tree, relative=False)
        for node in tree.of(ast.ClassDef):
            for full in filter(framework, map(self.full, node.bases)):
                self._names[node.name] = full

    def _starred(self, name: str) -> str:
        starred = (f"{module}.{name}" for module in self._stars[:MOST_STARS])
        return next((full for full in starred if full in (PARALLELIZE, STEPS) or framework(full)), "")


NOTHING = "obeys nothing: the preset sets only flags and environment"

CLAIMED = (
    "fsdp_plugin",
    "deepspeed_plugin",
    "deepspeed_plugins",
    "megatron_lm_plugin",
    "parallelism_config",
    "cpu",
)
"""Arguments of Accelerator that decide the strategy."""
TRAINER_CLAIMED = ("fsdp", "fsdp_config", "deepspeed")
"""Arguments of TrainingArguments that decide the strategy, and options with these names."""
NO_WAY = {"pp": "mesh.pp", "ep": "mesh.ep", "cp": "mesh.cp", "tp": "mesh.tp"}
"""Mesh dimensions that Accelerate does not apply to a model."""

Reader = Literal["parallelize", "accelerate", "trainer", "deepspeed", "adopt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """The preset's demands on the script."""

    kind: StrategyKind = "ddp"
    backend: str = "nccl"
    mesh: Sequence[str] = ()
    """Names of the mesh dimensions."""
    args: Sequence[str] = ()
    """The script's own arguments."""
    accumulation: int = 1
    """Backward passes per optimizer step."""
    options: Sequence[str] = ()
    """Enabled strategy options that act on layers or on the transfer of gradients."""
    beside: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Imported files of the script's folder: name → text, or None for a file that is too large."""
    own_config: str = ""
    """The script's own DeepSpeed configuration, if it was readable. See `own_config`."""


@dataclass(frozen=True, slots=True)
class Obeys:
    how: str | None
    """How the script obeys the preset's strategy, or None if it does not."""
    why: str
    """One sentence with the reason."""
    reader: Reader | None = None
    """Mechanism through which the script can obey some preset, even if not this one. None if distui knows none."""
    options: tuple[str, ...] = ()
    """Options to add to the script's arguments. The path of DeepSpeed's configuration follows the last one."""
    casts: bool = False
    """True if the script's names suggest that it casts to bf16 or fp16."""


USUAL = Requirements()


def inspect(script: str | None, source: str | bytes | None, asked: Requirements = USUAL) -> Obeys:
    """Inspect the text (or bytes) `source` of `script`. Never raises."""
    name = script or "the command"
    if source is None:
        return Obeys(None, f"{name} could not be read as a script, so what it obeys is unknown.")
    try:
        parsed = parse(source)
    except Unreadable as error:
        where = f" (line {error.line})" if error.line else ""
        return Obeys(None, f"{name} {error}{where}, so what it obeys is unknown.")
    ours = parsed.find(PARALLELIZE, COPY)
    if ours is not None:
        return _parallelize(name, ours, asked, parsed.find(STEPS, COPIED_STEPS) is not None)
    for call in parsed.calls:
        what = framework(call.full)
        if what:
            return _theirs(f"{name} {what} in line {call.line}", parsed, call, asked)
    return _through_imports(name, asked) or _obeys_nothing(name, parsed)


def _through_imports(name: str, asked: Requirements) -> Obeys | None:
    """Inspect the imported files. Return None if all are readable and none decides the strategy."""
    for file, text in asked.beside.items():
        through = inspect(f"{name}, through {file},", text, replace(asked, beside={}))
        if through.how or through.reader or "the preset's strategy does not change that" in through.why:
            return through
    unread = [file for file, text in asked.beside.items() if not _is_readable(text)]
    if not unread:
        return None
    lead = f"{name} names no strategy, and {listed(unread)}, which it imports, could not be read"
    return Obeys(None, f"{lead}, so what it obeys is unknown.")


def _obeys_nothing(name: str, parsed: Script) -> Obeys:
    used = {module.split(".")[0] for module in Names(parsed.tree).imported} & {"megatron", "nemo"}
    sizes = "".join(
        f"; it uses {top}, and its arguments name no parallel sizes" for top in sorted(used)[:1]
    )
    return Obeys(None, f"{name} {NOTHING}{sizes}.")


def listed(files: Sequence[str]) -> str:
    """Join file names: "a.py, b.py and 3 more" for a long list."""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more}"


def _is_readable(source: str | bytes | None) -> bool:
    try:
        return source is not None and bool(read(source))
    except Unreadable:
        return False


def _parallelize(name: str, call: ScriptCall, asked: Requirements, steps: bool) -> Obeys:
    """Return the answer for a script that calls parallelize(). `steps`: it also calls forward_backward()."""
    lead = f"{name} calls parallelize() in line {call.line}"
    if asked.kind == "deepspeed":
        return Obeys(None, f"{lead}, which is not DeepSpeed: take fsdp2, or zero1.", "parallelize")
    if "pp" in asked.mesh and not steps:
        return Obeys(None, f"{lead} and never forward_backward(), by which a pipeline runs.", "parallelize")
    doubt = "" if call.full == PARALLELIZE else ", if the parallelize beside it is distui's"
    but = ""
    if asked.accumulation > 1 and not steps:
        but = ", but not batch.accumulation, which acts in forward_backward()"
    how = f"{lead}: it obeys strategy and precision{doubt}{but}."
    return Obeys(how, how, "parallelize")


def _theirs(lead: str, script: Script, call: ScriptCall, asked: Requirements) -> Obeys:
    top, last = call.full.split(".", 1)[0], call.full.rpartition(".")[2]
    if top == "deepspeed":
        return _deepspeed(lead, script, call, asked)
    if last == "Accelerator":
        names = tuple(name for name in CLAIMED if not (name == "cpu" and _on_cpu_anyway(asked)))
        values = Values(script, asked.args)
        claims = _claims([call], names, values)
        return _accelerate(lead, "accelerate", claims, _claims([call], ("mixed_precision",), values), asked)
    if top in ("transformers", "trl"):
        return _trainer(lead, script, asked)
    return Obeys(None, f"{lead}: the preset's strategy does not change that.")


def _trainer(lead: str, script: Script, asked: Requirements) -> Obeys:
    """Return the answer for a Trainer, whose own settings are in TrainingArguments or on the command line."""
    made = [call for call in script.calls if call.last.endswith(("TrainingArguments", "Config"))]
    values = Values(script, asked.args)
    given = _given(TRAINER_CLAIMED, asked.args)
    if given:
        return Obeys(
            None, f"{lead}, and its arguments say {given}: the preset's strategy does not change that."
        )
    precise = _claims(made, ("bf16", "fp16"), values)
    given = _given(("bf16", "fp16"), asked.args)
    if given and not precise.sure:
        precise = _Claims(f"{given} among its arguments")
    return _accelerate(lead, "trainer", _claims(made, TRAINER_CLAIMED, values), precise, asked)


def _given(names: Sequence[str], args: Sequence[str]) -> str:
    """Return the option of one of these names that a command line gives a value, or ""."""
    for at, word in enumerate(args):
        option, equals, value = word.partition("=")
        behind = value if equals else next(iter(args[at + 1 : at + 2]), "")
        if option.startswith("--") and option[2:] in names and behind not in ("False", "false", '""', "''"):
            return option
    return ""


def _on_cpu_anyway(asked: Requirements) -> bool:
    """Return True if `cpu=True` of an Accelerator changes nothing.

    The ranks then have no GPU, and the Accelerator trains with DDP anyway.
    """
    return asked.kind in ("ddp", "single") and asked.backend == "gloo"


@dataclass(frozen=True, slots=True)
class _Claims:
    """Settings that the script makes itself."""

    sure: str = ""
    """The keyword that overrides any preset, with its line, or ""."""
    unless: tuple[str, ...] = ()
    """Conditions under which the script may override the preset at run time."""


def _claims(calls: Sequence[ScriptCall], names: Sequence[str], values: Values) -> _Claims:
    """Return which of these keywords the calls pass."""
    unless: list[str] = []
    for call in calls:
        for keyword in call.node.keywords:
            if keyword.arg is None and not unless:
                unless.append(f"{ast.unparse(keyword.value)} holds {' or '.join(names)}")
            if keyword.arg not in names:
                continue
            value = values.of(keyword.value)
            if value.given or _an_object(keyword, value, values):
                return _Claims(f"{keyword.arg} (line {keyword.value.lineno})")
            if value.unless:
                unless.append(value.unless)
    return _Claims(unless=tuple(dict.fromkeys(unless)))


def _an_object(keyword: ast.keyword, value: Value, values: Values) -> bool:
    """Return True if a keyword passes a name that is only assigned calls: a plugin object, never None."""
    if value.given is not None or keyword.arg == "cpu" or not isinstance(keyword.value, ast.Name):
        return False
    made = values.assigned.get(keyword.value.id, [])
    return keyword.arg in CLAIMED and all(isinstance(expression, ast.Call) for expression in made)


def _accelerate(lead: str, reader: Reader, claims: _Claims, precise: _Claims, asked: Requirements) -> Obeys:
    if claims.sure:
        return Obeys(
            None, f"{lead} with its own {claims.sure}: the preset's strategy does not change that.", reader
        )
    why_not = _beyond_accelerate(asked)
    if why_not:
        return Obeys(None, f"{lead}, {why_not}.", reader)
    unless = _clause(", unless", claims.unless)
    alone = f"{lead}: it obeys the strategy through the environment{unless}; the precision is its own "
    if precise.sure:
        how = f"{alone}({precise.sure.replace(' (line ', ' in line ').removesuffix(')')})."
    elif reader == "trainer" and asked.kind == "deepspeed":
        how = f"{alone}(under DeepSpeed the Trainer takes bf16 and fp16 only from its arguments)."
    else:
        own = _clause("; the precision is its own if", precise.unless)
        how = f"{lead}: it obeys strategy and precision through the environment{unless}{own}."
    if left := [name for name in asked.options if name not in _options_of_accelerate(asked.kind)]:
        how = f"{how[:-1]}; but not strategy.{left[0]}, which it has no way to set from outside."
    return Obeys(how, how, reader)


def _clause(lead: str, conditions: Sequence[str]) -> str:
    return f"{lead} {' or '.join(conditions)}" if conditions else ""


def _options_of_accelerate(kind: StrategyKind) -> tuple[str, ...]:
    return ("activation_checkpointing", "compile") if kind in ("fsdp1", "fsdp2") else ("compile",)


def _beyond_accelerate(asked: Requirements) -> str | None:
    """Return why Accelerate cannot do what the preset requires, or None if it can."""
    if asked.kind == "zero1":
        return (
            "which has no ZeroRedundancyOptimizer and trains as DDP: ds-zero1 divides its optimizer state"
        )
    if asked.kind in ("fsdp1", "fsdp2") and asked.backend == "gloo":
        return "which knows no FSDP on CPU and trains as DDP there"
    beyond = next((NO_WAY[name] for name in asked.mesh if name in NO_WAY), None)
    return f"which does not divide a model by {beyond}: call parallelize() for that" if beyond else None


def _deepspeed(lead: str, script: Script, call: ScriptCall, asked: Requirements) -> Obeys:
    if asked.kind != "deepspeed":
        return Obeys(
            None, f"{lead}, which obeys only strategy deepspeed: take ds-zero1, 2 or 3.", "deepspeed"
        )
    casts = bool(_CASTS & {node.attr for node in script.tree.of(ast.Attribute)})
    how = f"{lead}: it obeys strategy and precision through "
    if option_at(asked.args) is not None:
        if not asked.own_config:
            return Obeys(
                None,
                f"{lead}, and its arguments name a configuration ({OPTION}) that cannot be read from here: the preset's "
                "is not used.",
                "deepspeed",
            )
        how += f"{OPTION}, which gets {asked.own_config} merged with the preset."
        return Obeys(how, how, "deepspeed", casts=casts)
    if VARIABLE in script.texts:
        return Obeys(f"{how}{VARIABLE}.", f"{how}{VARIABLE}.", "deepspeed", casts=casts)
    given = call.keyword("config", "config_params")
    if given is not None and not (
        isinstance(given.value, ast.Attribute) and given.value.attr == OPTION[2:]
    ):
        return Obeys(
            None,
            f"{lead} with a {given.arg} of its own: the preset's strategy does not change that.",
            "deepspeed",
        )
    options = _deepspeed_options(script)
    if not options:
        return Obeys(
            None,
            f"{lead} and takes no configuration from outside: have it call deepspeed.add_config_arguments(parser), "
            f"or read the file that {VARIABLE} names.",
            "deepspeed",
        )
    how += f"{OPTION}, which distui adds to its arguments."
    return Obeys(how, how, "deepspeed", options, casts)


_CASTS = frozenset({"bfloat16", "float16", "half", "autocast"})


def own_config(source: str | bytes | None, args: Sequence[str]) -> str:
    """Return the DeepSpeed configuration that a script would read without distui, or "". Never raises.

    It is the file in its arguments, or the default of its option.
    """
    at = option_at(args)
    if at is not None:
        return args[at].partition("=")[2] if "=" in args[at] else next(iter(args[at + 1 : at + 2]), "")
    try:
        script = parse(source or "")
    except Unreadable:
        return ""
    for option in script.options:
        if OPTION in option.names and isinstance(option.default, ast.Constant):
            usual = option.default.value
            return usual if isinstance(usual, str) else ""
    return ""


def _deepspeed_options(script: Script) -> tuple[str, ...]:
    """Return the options through which the script takes a configuration."""
    if script.find("deepspeed.add_config_arguments") is not None:
        return ("--deepspeed", OPTION)
    for call in script.calls:
        if call.last == "add_argument" and call.first_text() == OPTION:
            return (OPTION,)
    return ()
