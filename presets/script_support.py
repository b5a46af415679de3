"""Which parts of a preset a script obeys, by its syntax tree: its calls, their full names, values of arguments.

Nothing is executed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .deepspeed import OPTION, option_at
from .model import StrategyKind
from .script_tree import MOST_FILES, ScriptTree, read
from .text_formats import Unreadable

_DEEPEST = 8
"""Names that are followed from one assignment to the next."""
_EMPTY = ("", "none", "None", "null", "False", "false")
"""Words of a command line that give nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option that the script declares with argparse."""

    names: tuple[str, ...]
    """With their dashes, the one that a sentence names last."""
    dest: str
    action: str
    default: ast.expr | None

    @property
    def name(self) -> str:
        return self.names[-1]


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of an argument's value."""

    given: bool | None
    """Whether it is something else than None and False; None: that shows only when the script runs."""
    literal: object = None
    """Where it is given as a number or a text."""
    unless: str = ""
    """What would make it another one, as the end of "unless …"."""


FALSE = Value(False)


class Values:
    """The values in one script that is launched with `args`."""

    def __init__(self, script: Script, args: Sequence[str]) -> None:
        self.options, self.assigned = script.options, script.assigned
        self._by_dest: dict[str, list[Option]] = {}
        for option in script.options:
            self._by_dest.setdefault(option.dest, []).append(option)
        self._words = _words_of_options(script.options, args)

    def of(self, node: ast.expr, deep: int = 0) -> Value:
        """What an expression comes to."""
        named = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        unknown = Value(None, unless=f"{_short(node)} {'is set' if named else 'comes to something'}")
        if isinstance(node, ast.Constant):
            nothing = node.value is None or node.value is False or node.value == ""
            return FALSE if nothing else Value(True, node.value)
        if isinstance(node, ast.Call | ast.Dict | ast.List | ast.Tuple):
            return unknown if _reads(node) else Value(True)
        if isinstance(node, ast.IfExp):
            branches = {self.of(node.body, deep), self.of(node.orelse, deep)}
            return branches.pop() if len(branches) == 1 else unknown
        if deep < _DEEPEST and isinstance(node, ast.Attribute | ast.Subscript):
            option = self.option(_key(node))
            return self.of_option(option, deep) if option else unknown
        values = self.assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        return self.of(values[0], deep + 1) if len(values) == 1 and deep < _DEEPEST else unknown

    def option(self, dest: str) -> Option | None:
        """The option that fills this name in what the parser returns; None where none, or several do."""
        options = self._by_dest.get(dest, [])
        return options[0] if len(options) == 1 else None

    def of_option(self, option: Option, deep: int = 0) -> Value:
        """What an option comes to in this launch."""
        word = self._words.get(option)
        if option.action in ("store_true", "store_false"):
            on = (word is not None) == (option.action == "store_true")
            return Value(True, True) if on else Value(False, unless=f"{option.name} is given")
        if word is None:
            usual = FALSE if option.default is None else self.of(option.default, deep + 1)
            return Value(usual.given, usual.literal, f"{option.name} is given")
        return FALSE if word in _EMPTY else Value(True, word)


def _words_of_options(options: Sequence[Option], args: Sequence[str]) -> dict[Option, str]:
    """The word that a command line gives to each option, "" where it gives the option alone."""
    words: dict[Option, str] = {}
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not equals:
            behind = args[at + 1] if at + 1 < len(args) else ""
            value = "" if behind.startswith("--") else behind
        words |= dict.fromkeys(_meant(name, options), value)
    return words


def _meant(word: str, options: Sequence[Option]) -> list[Option]:
    """The options that argparse takes a word for: also a beginning that no other option has."""
    exact = [option for option in options if word in option.names]
    if exact or not word.startswith("--") or len(word) < 3:
        return exact
    fitting = [option for option in options if any(name.startswith(word) for name in option.names)]
    return fitting if len(fitting) == 1 else []


def _option(node: ast.Call) -> Option | None:
    if _last(node.func) not in ("add_argument", "add", "add_arg"):
        return None
    words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    names = tuple(word for word in words if word.startswith("-"))
    if not names or len(names) != len(node.args):
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    long = next((name for name in names if name.startswith("--")), names[0])
    dest, action = keywords.get("dest"), keywords.get("action")
    return Option(
        (*(name for name in names if name != long), long),
        str(dest.value) if isinstance(dest, ast.Constant) else long.lstrip("-").replace("-", "_"),
        str(action.value) if isinstance(action, ast.Constant) else "store",
        keywords.get("default"),
    )


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):  # of a tuple it is a part: whatever it is, it is no literal
                    yield name.id, node.value if isinstance(target, ast.Name) else name
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.target if isinstance(node, ast.AugAssign) else node.value
    elif isinstance(node, ast.arg):
        yield node.arg, ast.Name(node.arg)
    elif isinstance(node, ast.For | ast.comprehension):
        yield from ((name.id, name) for name in ast.walk(node.target) if isinstance(name, ast.Name))


def _key(node: ast.Attribute | ast.Subscript) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _reads(node: ast.expr) -> bool:
    """Whether a call asks for a value rather than making one: os.environ.get("X"), getattr(args, "x"), bool(x)."""
    return isinstance(node, ast.Call) and not _last(node.func)[:1].isupper() and _last(node.func) != "dict"


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:39] + "…"


PARALLELIZE = "distui.runners.inrank.parallelize.parallelize"
STEPS = "distui.runners.inrank.parallelize.forward_backward"
"""distui's own calls; the second leaves the order of forward and backward passes to the preset."""
COPY, COPIED_STEPS = "parallelize.parallelize", "parallelize.forward_backward"
"""The same, from a copy of the folder beside the script."""

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
"""Last part of a call's full name → package that it comes from, the kind of strategy that it is, "" for none by itself,
and what a script that calls it does."""

TRAINERS = ("transformers", "trl")
"""Packages whose classes called …Trainer go through Accelerate."""
LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer is Lightning's."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    full: str
    """Full dotted name; "" when no import explains it."""
    last: str
    """Its last part as it is written there, explained or not."""
    line: int
    node: ast.Call

    def keyword(self, *names: str) -> ast.keyword | None:
        """The first keyword argument of one of these names that is neither None nor False."""
        for keyword in self.node.keywords:
            nothing = isinstance(keyword.value, ast.Constant) and keyword.value.value in (None, False)
            if keyword.arg in names and not nothing:
                return keyword
        return None

    def first_text(self) -> str:
        """Its first argument, where that is a text; else ""."""
        first = self.node.args[0] if self.node.args else None
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """What there is to know about a script's text."""

    calls: tuple[ScriptCall, ...]
    """In the order of the text."""
    texts: frozenset[str]
    options: tuple[Option, ...]
    assigned: Mapping[str, Sequence[ast.expr]]
    """By name: what is assigned to it."""
    tree: ScriptTree

    def find(self, *fulls: str) -> ScriptCall | None:
        """The first call of one of these full names."""
        return next((call for call in self.calls if call.full in fulls), None)


def parse(source: str | bytes) -> Script:
    """Read a script. Raises Unreadable."""
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
    """Paths, seen from the script's folder, of the files that it would import if they are there. Never raises."""
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
    """What a script does that calls this; None where it implies no strategy."""
    package, _, last = full.rpartition(".")
    top = package.split(".", 1)[0]
    if last in ("Trainer", "Fabric") and top in LIGHTNING:
        return f"leaves it to Lightning ({last})"
    if top in TRAINERS and last.endswith("Trainer"):
        return f"leaves it to the {top} {last}"
    return wraps(full)[1] or None


def wraps(full: str) -> tuple[str, str]:
    """The kind of strategy that a call of this name is, and what a script does by it; "" for none."""
    package, _, last = full.rpartition(".")
    home, kind, what = FRAMEWORKS.get(last, ("", "", ""))
    inside = home and (package == home or package.startswith(f"{home}."))
    return (kind, what) if inside else ("", "")


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


MOST_STARS = 50
"""Modules imported with a star in which a name is looked for."""


class Names:
    """What the imports of a script make of a name; `relative`: also those from beside the script."""

    def __init__(self, tree: ScriptTree, *, relative: bool = True) -> None:
        self._names: dict[str, str] = {}
        self._stars: list[str] = []
        self.imported: dict[str, int] = {}
        """Module as it is written, with dots in front where it is relative → line of its first import."""
        for node in tree.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".", 1)[0]
                    self.imported.setdefault(alias.name, node.lineno)
                    self._names.setdefault(alias.asname or top, alias.name if alias.asname else top)
            elif relative or not node.level:
                module = "." * node.level + (node.module or "")
                self.imported.setdefault(module, node.lineno)
                for alias in node.names:
                    if alias.name == "*":
                        self._stars.append(module)
                    else:
                        self._names.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.AST) -> str:
        """The dotted name behind `node`, "" when no import explains it; a starred import may."""
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
    """With subclasses of what wraps a model; a starred import explains only names that mean something here."""

    def __init__(self, tree: ScriptTree) -> None:
        super().__init__(tree, relative=False)
        for node in tree.of(ast.ClassDef):
            for full in filter(framework, map(self.full, node.bases)):
                self._names[node.name] = full

    def _starred(self, name: str) -> str:
        starred = (f"{module}.{name}" for module in self._stars[:MOST_STARS])
        return next((full for full in starred if full in (PARALLELIZE, STEPS) or framework(full)), "")


NOTHING = "obeys nothing: the preset sets only flags and environment"

VARIABLE = "DISTUI_DEEPSPEED_CONFIG"
"""By which a DeepSpeed script may ask for the configuration itself (deepspeed.VARIABLE)."""
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
"""Arguments of TrainingArguments that do so; also options, where the script reads its own from the command line."""
NO_WAY = {"pp": "mesh.pp", "ep": "mesh.ep", "cp": "mesh.cp", "tp": "mesh.tp"}
"""Dimensions of a mesh that Accelerate does not make of a model by itself."""

Reader = Literal["parallelize", "accelerate", "trainer", "deepspeed", "adopt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What the preset wants of the script."""

    kind: StrategyKind = "ddp"
    backend: str = "nccl"
    mesh: Sequence[str] = ()
    """Names of the dimensions that there are."""
    args: Sequence[str] = ()
    """The script's own arguments."""
    accumulation: int = 1
    """Backward passes before each optimizer step."""
    options: Sequence[str] = ()
    """Names of the options of the strategy that act on layers or on how gradients travel, and are on."""
    beside: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Files beside the script that it imports: name → text; None: too large to be read."""
    own_config: str = ""
    """The script's own configuration of DeepSpeed, where it could be read: see `own_config`."""


@dataclass(frozen=True, slots=True)
class Obeys:
    how: str | None
    """How the script obeys the preset's strategy; None when it does not."""
    why: str
    """One sentence with the reason."""
    reader: Reader | None = None
    """By what it would obey some preset, if not this one; None: by nothing that distui knows."""
    options: tuple[str, ...] = ()
    """Options of the script that are to be given, the last with the path of DeepSpeed's configuration behind it."""
    casts: bool = False
    """Whether the script itself makes anything bf16 or fp16, as far as its names say."""


USUAL = Requirements()


def inspect(script: str | None, source: str | bytes | None, asked: Requirements = USUAL) -> Obeys:
    """Look at the text (or bytes) `source` of `script`. Never raises."""
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
    for file, text in asked.beside.items():
        through = inspect(f"{name}, through {file},", text, replace(asked, beside={}))
        if through.how or through.reader or "the preset's strategy does not change that" in through.why:
            return through
    unread = [file for file, text in asked.beside.items() if not _is_readable(text)]
    if unread:
        lead = f"{name} names no strategy, and {listed(unread)}, which it imports, could not be read"
        return Obeys(None, f"{lead}, so what it obeys is unknown.")
    used = {module.split(".")[0] for module in Names(parsed.tree).imported} & {"megatron", "nemo"}
    sizes = "".join(
        f"; it uses {top}, and its arguments name no parallel sizes" for top in sorted(used)[:1]
    )
    return Obeys(None, f"{name} {NOTHING}{sizes}.")


def listed(files: Sequence[str]) -> str:
    """ "a.py, b.py and 3 more"."""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more}"


def _is_readable(source: str | bytes | None) -> bool:
    try:
        return source is not None and bool(read(source))
    except Unreadable:
        return False


def _parallelize(name: str, call: ScriptCall, asked: Requirements, steps: bool) -> Obeys:
    """`steps`: whether the script calls forward_backward(), too."""
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
    """The Trainer's own settings stand where its arguments are made, or on the command line."""
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
    """The option of one of these names that a command line gives a value; "" for none."""
    for at, word in enumerate(args):
        option, equals, value = word.partition("=")
        behind = value if equals else next(iter(args[at + 1 : at + 2]), "")
        if option.startswith("--") and option[2:] in names and behind not in ("False", "false", '""', "''"):
            return option
    return ""


def _on_cpu_anyway(asked: Requirements) -> bool:
    """Where the ranks have no GPU, an Accelerator that is told so trains with DDP as it would without."""
    return asked.kind in ("ddp", "single") and asked.backend == "gloo"


@dataclass(frozen=True, slots=True)
class _Claims:
    """What a script decides itself."""

    sure: str = ""
    """The keyword that decides whatever the preset says, and where; "" for none."""
    unless: tuple[str, ...] = ()
    """What else may decide when it runs."""


def _claims(calls: Sequence[ScriptCall], names: Sequence[str], values: Values) -> _Claims:
    """Which of the keywords of these calls are given."""
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
    """Whether a name is passed that is never None: nobody makes a plugin to pass nothing."""
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
    unless = f", unless {' or '.join(claims.unless)}" if claims.unless else ""
    alone = f"{lead}: it obeys the strategy through the environment{unless}; the precision is its own "
    if precise.sure:
        how = f"{alone}({precise.sure.replace(' (line ', ' in line ').removesuffix(')')})."
    elif reader == "trainer" and asked.kind == "deepspeed":
        how = f"{alone}(under DeepSpeed the Trainer takes bf16 and fp16 from its arguments alone)."
    else:
        own = f"; the precision is its own if {' or '.join(precise.unless)}" if precise.unless else ""
        how = f"{lead}: it obeys strategy and precision through the environment{unless}{own}."
    if left := [name for name in asked.options if name not in _options_of_accelerate(asked.kind)]:
        how = f"{how[:-1]}; but not strategy.{left[0]}, which it has no way to set from outside."
    return Obeys(how, how, reader)


def _options_of_accelerate(kind: StrategyKind) -> tuple[str, ...]:
    return ("activation_checkpointing", "compile") if kind in ("fsdp1", "fsdp2") else ("compile",)


def _beyond_accelerate(asked: Requirements) -> str | None:
    """Why Accelerate cannot do what is asked; None when it can."""
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
            None, f"{lead}, which obeys strategy deepspeed alone: take ds-zero1, 2 or 3.", "deepspeed"
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
    """The file of DeepSpeed's configuration that a script would read by itself: of its arguments, or by its option's
    default; "" for none. Never raises.
    """
    at = option_at(args)
    if at is not None:
        return args[at].partition("=")[2] if "=" in args[at] else next(iter(args[at + 1 : at + 2]), "")
    try:
        script = parse(source or "")
    except Unreadable:
        return ""
    usual = (option.default for option in script.options if OPTION in option.names)
    texts = [default.value for default in usual if isinstance(default, ast.Constant)]
    return texts[0] if texts and isinstance(texts[0], str) else ""


def _deepspeed_options(script: Script) -> tuple[str, ...]:
    """Options by which the script takes a configuration."""
    if script.find("deepspeed.add_config_arguments") is not None:
        return ("--deepspeed", OPTION)
    for call in script.calls:
        if call.last == "add_argument" and call.first_text() == OPTION:
            return (OPTION,)
    return ()
