"""Create presets from accelerate's YAML, DeepSpeed's JSON and SkyPilot's tasks.

Values without a field go to the tables [accelerate], [deepspeed] and [sky], key by key. A note names each key that the
preset cannot keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, get_args

from . import model, nccl, text_formats
from .finding import Finding, PlanError, PresetError
from .launchers import accelerate, deepspeed
from .lint import lint_file
from .lint.accelerate_file import sharding_name
from .lint.files import kind_of
from .lint.named_files import named_files
from .model import Preset
from .secrets import is_secret
from .text_formats import (
    MOST_BYTES,
    MarkupNode,
    Unreadable,
    bare,
    decoded,
    plain,
    toml_escaped,
    toml_pair,
    whole,
)

WANTED = "accelerate's YAML, DeepSpeed's JSON or a SkyPilot task is expected"


BY_NAME = ("L43",)
"""Findings on files whose name does not tell the format, which the import takes from the content."""


def import_preset(
    name: str, data: bytes, read: Callable[[str], bytes | None] = lambda name: None
) -> tuple[Imported, list[Finding]]:
    """Import the file `name`. Return the preset and lint's findings. Raises PresetError.

    `read` returns a file that this one names, by its path relative to this one's folder, or None if it is unreadable.
    """
    try:
        document = _document(name, data)
    except Unreadable as error:
        raise PresetError(f"{name} line {error.line}: {error}: {WANTED}") from None
    values = bare(document)
    match kind_of(document):
        case "accelerate":
            draft = from_accelerate(values, name, read)
            draft.notes += _lost_keys(_as_written_today(values), draft, name, accelerate.file)
        case "deepspeed":
            draft = from_deepspeed(values, name)
            draft.notes += _lost_keys(values, draft, name, deepspeed.file)
        case "skypilot":
            draft = from_skypilot(values, read)
        case _:
            keys = ", ".join(list(document.mapping)[:5])
            content = f"keys {keys}" if keys else "no mapping"
            raise PresetError(f"{name} line {max(1, document.line)}: it holds {content}: {WANTED}")
    return draft, [finding for finding in lint_file(name, data) if finding.id not in BY_NAME]


def _document(name: str, data: bytes) -> MarkupNode:
    """Parse the file. Raises Unreadable, and PresetError for several documents."""
    if len(data) > MOST_BYTES:
        raise Unreadable(1, f"is larger than {MOST_BYTES >> 20} MiB")
    text, suffix = decoded(data), PurePath(name).suffix.lower()
    if suffix == ".json" or (text.lstrip().startswith("{") and suffix not in (".yaml", ".yml")):
        return text_formats.read_json(text)
    documents = text_formats.read_yaml(text)
    if len(documents) != 1:
        raise PresetError(f"{name}: {len(documents)} documents where one is expected")
    return documents[0]


@dataclass(slots=True)
class Imported:
    """A preset's values by field path, collected during the import."""

    values: dict[str, Any] = field(default_factory=dict)
    """Keys such as "strategy.kind", "env.OMP_NUM_THREADS", "deepspeed.gradient_clipping". Nested tables are mappings."""
    notes: list[str] = field(default_factory=list)
    """One sentence per fact that the user should know. The file repeats them."""

    def put(self, path: str, value: object) -> None:
        """Set a value. None is ignored."""
        if value is not None:
            self.values[path] = value

    def change(self, path: str, value: object) -> None:
        """Set the value of a --set. A new strategy drops the options of the imported one."""
        if path == "strategy.kind":
            dropped = model.options_of(None) - model.options_of(str(value))
            self.values = model.without(self.values, dropped)
        table, _, key = path.partition(".")
        if table in model.NESTED:
            self.keep(table, {key: value})
        else:
            self.values[path] = value

    def keep(self, table: str, rest: Mapping[str, Any]) -> None:
        """Keep the other program's keys. Null is left out, because it means the default, and TOML has no null."""
        for key, value in rest.items():
            kept = _without_null(value)
            if kept is not None and kept != {}:
                path = f"{table}.{key}"
                self.values[path] = model.merged(self.values.get(path, {}), kept)


def preset_of(draft: Imported, source: str) -> Preset:
    """Return the imported preset. Every value is checked as in loading. Raises PresetError."""
    accepted = {path: model.accept(path, value, source) for path, value in draft.values.items()}
    return model.build("imported", accepted)


def _lost_keys(
    document: Mapping[str, Any], draft: Imported, source: str, write: Callable[[Preset], dict[str, Any]]
) -> list[str]:
    """Return a note on each key that the other program's file, written from the preset, does not have again.

    Keys that a note names already are left out. Raises PresetError.
    """
    try:
        written = write(preset_of(draft, source))
    except PlanError as error:
        return [f"It cannot be written again as such a file: {error}."]
    named = " ".join(draft.notes)
    return [
        f"{path} {value} is not kept: a preset cannot hold it."
        for path, value in _missing(document, written)
        if path.rpartition(".")[2] not in named
    ]


def _missing(before: Mapping[str, Any], after: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield path and value of what `after` lacks or has otherwise. Null and empty tables mean the default."""
    for key, value in before.items():
        other = after.get(key) if isinstance(after, Mapping) else None
        if isinstance(value, Mapping):
            yield from _missing(value, other, f"{path}{key}.")
        elif value is not None and _comparable(value) != _comparable(other):
            yield f"{path}{key}", value


def _comparable(value: object) -> object:
    """Return one form for the ways in which YAML writers write a value."""
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    shown = str(value).replace(" ", "")
    return _TRUTHS.get(shown.lower(), shown)


def text(name: str, source: str, draft: Imported) -> str:
    """Return the preset file `name`. Every value is checked as in loading. Raises PresetError."""
    lines = [f"# Imported from {toml_escaped(source)}."]
    lines += [f"# {toml_escaped(note)}" for note in draft.notes]
    lines += [toml_pair("title", name), toml_pair("summary", f"From {source}.")]
    tables: dict[str, list[str]] = {table: [] for table in model.tables()}
    for path, value in draft.values.items():
        accepted = model.accept(path, value, source)
        table, _, key = path.partition(".")
        if table not in tables or not key:
            raise PresetError(f"{source}: {path} is not a field of a preset")
        tables[table].append(toml_pair(key, accepted))
    for table, pairs in tables.items():
        if pairs:
            lines += ["", f"[{table}]", *pairs]
    return "\n".join(lines) + "\n"


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {str(key): _without_null(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part is not None}
    if isinstance(value, list):
        return [part for part in map(_without_null, value) if part is not None]
    return value


def table_of(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of a document's table, or an empty one."""
    table = document.get(key)
    return dict(table) if isinstance(table, Mapping) else {}


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def truth(value: object) -> bool | None:
    """Return a boolean, also from the texts that YAML writers use, or None for other values."""
    if isinstance(value, bool):
        return value
    return _TRUTHS.get(str(value).strip().lower())


def _number(value: object, key: str, default: int) -> int:
    """Return the whole number of a key, or its default if it is missing. Raises PresetError for another value."""
    if value is None:
        return default
    number = whole(value)
    if number is None:
        raise PresetError(f"{key} is {value}: a whole number is expected")
    return number


KINDS = {"NO": "single", "FSDP": "fsdp1", "DEEPSPEED": "deepspeed", accelerate.MEGATRON: "ddp"}
"""distributed_type → kind of strategy. MULTI_… is ddp."""
PLACED = ("machine_rank", "main_process_ip", "main_process_port")
"""Keys that depend on the node. distui determines them at each launch."""
PREFIXES = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_", "fp8_config": "fp8_"}
"""Table → the prefix of its keys, which accelerate's older files leave out."""


def from_accelerate(
    document: Mapping[str, Any], source: str, read: Callable[[str], bytes | None] = lambda name: None
) -> Imported:
    """Import accelerate's YAML. Raises PresetError."""
    rest = _as_written_today(document)
    name = str(rest.pop("distributed_type", ""))
    kind = _kind(name, rest, source)
    if kind == "deepspeed":
        draft = _accelerates_deepspeed(rest, source, read)
    else:
        draft = Imported({"strategy.kind": kind})
        _accelerate_precision(rest, draft)
    _machines(rest, draft, kind)
    _cpu(name, rest, draft)
    _compilation(rest, draft)
    if kind in ("fsdp1", "fsdp2"):
        rest["fsdp_config"] = _fsdp(table_of(rest, "fsdp_config"), draft, kind)
    rest["parallelism_config"] = _sizes(table_of(rest, "parallelism_config"), draft, kind)
    if name == accelerate.MEGATRON or (
        name.startswith("MULTI_") and name not in ("MULTI_GPU", "MULTI_CPU")
    ):
        draft.keep("accelerate", {"distributed_type": name})
    draft.keep("accelerate", rest)
    return draft


def _as_written_today(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which the keys of accelerate's tables have their prefixes, and FSDP's strategy its name."""
    rest = dict(document)
    for table, prefix in PREFIXES.items():
        if isinstance(rest.get(table), Mapping):
            rest[table] = {prefix + key.removeprefix(prefix): value for key, value in rest[table].items()}
    fsdp = table_of(rest, "fsdp_config")
    if "fsdp_sharding_strategy" in fsdp:
        name = sharding_name(plain(fsdp["fsdp_sharding_strategy"]))
        rest["fsdp_config"] = {**fsdp, "fsdp_sharding_strategy": name}
    backend = rest.pop("dynamo_backend", None)
    if backend not in (None, "NO", "no"):
        rest["dynamo_config"] = {"dynamo_backend": backend}
    return rest


def _kind(name: str, rest: dict[str, Any], source: str) -> str:
    """Return the kind of strategy. Raises PresetError."""
    place = rest.pop("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        raise PresetError(f"{source}: compute_environment is {place}: only LOCAL_MACHINE can be a preset")
    if name == "XLA":
        raise PresetError(
            f"{source}: distributed_type is XLA: distui starts ranks on GPUs and CPUs, not on TPUs"
        )
    if name in KINDS or name.startswith("MULTI_"):
        kind = KINDS.get(name, "ddp")
        version = whole(table_of(rest, "fsdp_config").get("fsdp_version"))
        return "fsdp2" if kind == "fsdp1" and version == 2 else kind
    raise PresetError(
        f"{source}: distributed_type is {name or 'missing'}: one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED and "
        "MEGATRON_LM is expected"
    )


def _accelerate_precision(rest: dict[str, Any], draft: Imported) -> None:
    """Import the precision. Accelerate sums gradients in the format of the computation."""
    mixed = str(rest.get("mixed_precision") or "no")
    param = {"no": "fp32", "False": "fp32", "bf16": "bf16", "fp16": "fp16"}.get(mixed)
    if param is not None:
        rest.pop("mixed_precision", None)
        if mixed == "fp16" or truth(rest.get("fp16")):
            param = "fp16"
        rest.pop("fp16", None)
    else:
        draft.notes.append(
            f"mixed_precision {mixed} stays Accelerate's own: precision.param has no such format."
        )
    draft.put("precision.param", param or "bf16")
    draft.put("precision.reduce", param or "bf16")


def _machines(rest: dict[str, Any], draft: Imported, kind: str) -> None:
    nodes = _number(rest.pop("num_machines", None), "num_machines", 1)
    total = _number(rest.pop("num_processes", None), "num_processes", 0)
    draft.put("topology.nnodes", nodes)
    if kind == "single":
        draft.put("topology.nproc_per_node", 1)
    elif total > 0:
        draft.put("topology.nproc_per_node", max(1, total // nodes))
        if nodes > 1:
            draft.notes.append(
                f"num_processes {total} is the total of {nodes} machines: {total // nodes} ranks on each."
            )
    for key in PLACED:
        if rest.pop(key, None) not in (None, 0):
            draft.notes.append(f"{key} is left out: each launch sets it.")


def _cpu(name: str, rest: dict[str, Any], draft: Imported) -> None:
    """Import the choice of GPUs, or of none, as the variable that makes it."""
    gpus = rest.pop("gpu_ids", None)
    if truth(rest.pop("use_cpu", False)) or name == "MULTI_CPU":
        draft.put("env.CUDA_VISIBLE_DEVICES", "")
    elif gpus not in (None, "all"):
        draft.put("env.CUDA_VISIBLE_DEVICES", str(gpus))


def _compilation(rest: dict[str, Any], draft: Imported) -> None:
    """Import compilation of each layer. Other settings of torch.compile are kept."""
    table = table_of(rest, "dynamo_config")
    per_layer = truth(table.get("dynamo_use_regional_compilation"))
    if str(table.get("dynamo_backend")).upper() == "INDUCTOR" and per_layer:
        del table["dynamo_backend"], table["dynamo_use_regional_compilation"]
        draft.put("strategy.compile", True)
        rest["dynamo_config"] = table


def _fsdp(table: dict[str, Any], draft: Imported, kind: str) -> dict[str, Any]:
    """Import FSDP's options.

    Missing keys get the defaults of `accelerate launch`, which differ from those of the fields.
    """
    table.pop("fsdp_version", None)
    draft.put("strategy.cpu_offload", truth(table.pop("fsdp_offload_params", False)) or False)
    checkpointing = truth(table.pop("fsdp_activation_checkpointing", False)) or False
    draft.put("strategy.activation_checkpointing", checkpointing)
    classes = table.pop("fsdp_transformer_layer_cls_to_wrap", None)
    if classes:
        names = classes if isinstance(classes, list) else str(classes).split(",")
        draft.put("strategy.wrap", [str(name).strip() for name in names if str(name).strip()])
    rest = {"fsdp_auto_wrap_policy": "NO_WRAP", **table}
    if kind == "fsdp2":
        raw = rest.pop("fsdp_reshard_after_forward", True)
        reshard = truth(raw)
        draft.put("strategy.reshard_after_forward", True if reshard is None else reshard)
        return rest
    draft.put("strategy.sharding", rest.pop("fsdp_sharding_strategy", None) or "FULL_SHARD")
    return {"fsdp_backward_prefetch": "NO_PREFETCH", **rest}


def _sizes(table: dict[str, Any], draft: Imported, kind: str) -> dict[str, Any]:
    """Import the sizes of `parallelism_config` as the mesh. The number of ranks decides dp_shard."""
    sizes = {name: whole(table.get(accelerate.size_key(name))) for name in accelerate.OF_MESH}
    for name, size in sizes.items():
        is_divided = size is not None and size > 1
        if kind == "fsdp2" or (is_divided and name != "dp_replicate"):
            table.pop(accelerate.size_key(name), None)
        if kind == "fsdp2" and is_divided:
            draft.put(f"mesh.{name}", size)
        elif is_divided and name != "dp_replicate":
            draft.notes.append(
                f"{accelerate.size_key(name)} {size} is left out: a preset has mesh.{name} only with fsdp_version 2."
            )
    if kind == "fsdp2":
        table.pop(accelerate.size_key("dp_shard"), None)
    return table


def _accelerates_deepspeed(
    rest: dict[str, Any], source: str, read: Callable[[str], bytes | None]
) -> Imported:
    """Import the settings of DeepSpeed, also those of a file that the YAML names. Raises PresetError."""
    table = table_of(rest, "deepspeed_config")
    path = table.pop("deepspeed_config_file", None)
    rest["deepspeed_config"] = table
    if path in (None, "none"):
        draft = Imported({"strategy.kind": "deepspeed"})
        _accelerate_precision(rest, draft)
        _short_form(table, draft)
        return draft
    config = deepspeed.parsed(read(str(path)))
    if config is None:
        raise PresetError(
            f"{source}: deepspeed_config_file {path} cannot be read as JSON: put it next to {source}"
        )
    rest.pop("mixed_precision", None)  # Accelerate refuses it with such a file
    draft = from_deepspeed(config, str(path))
    draft.notes.append(f"The preset has the values of {path}, which its deepspeed_config_file names.")
    return draft


def _short_form(table: dict[str, Any], draft: Imported) -> None:
    """Import the keys of `deepspeed_config` that have fields, and take them out of the table."""
    draft.put("strategy.stage", _number(table.pop("zero_stage", None), "zero_stage", 2))
    paths = []
    for name in ("optimizer", "param"):
        paths.append(table.pop(f"offload_{name}_nvme_path", None))
        draft.put(f"strategy.offload_{name}", str(table.pop(f"offload_{name}_device", None) or "none"))
    draft.put(
        "strategy.nvme_path", next((str(entry) for entry in paths if entry and entry != "none"), None)
    )
    draft.put("batch.accumulation", whole(table.pop("gradient_accumulation_steps", None)))
    clipping = table.pop("gradient_clipping", None)
    draft.keep("deepspeed", {"gradient_clipping": "auto" if clipping is None else clipping})
    if truth(table.pop("zero3_save_16bit_model", False)):
        draft.keep("deepspeed", {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}})


def from_deepspeed(document: Mapping[str, Any], source: str) -> Imported:
    """Import DeepSpeed's JSON. Raises PresetError."""
    draft, rest = Imported(), dict(document)
    draft.put("strategy.kind", "deepspeed")
    zero = rest.pop("zero_optimization", {})
    if zero is True or not isinstance(zero, Mapping):
        raise PresetError(f"{source}: zero_optimization is {zero!r}: a table with a stage is expected")
    kept: dict[str, Any] = {**_batch(rest, draft), **_deepspeed_precision(rest, draft)}
    # A missing key means DeepSpeed's own default, which differs from the field's.
    rest.setdefault("zero_allow_untested_optimizer", False)
    left = _zero(dict(zero), draft, rest)
    draft.keep("deepspeed", {**kept, **rest, "zero_optimization": left})
    return draft


def _zero(zero: dict[str, Any], draft: Imported, rest: dict[str, Any]) -> dict[str, Any]:
    draft.put("strategy.stage", _number(zero.pop("stage", None), "zero_optimization.stage", 0))
    for name in ("offload_optimizer", "offload_param"):
        part = table_of(zero, name)
        zero.pop(name, None)
        device = str(part.pop("device", None) or "none")
        if device != "none":
            draft.put(f"strategy.{name}", device)
        if device == "nvme" and draft.values.get("strategy.nvme_path") in (None, part.get("nvme_path")):
            draft.put("strategy.nvme_path", part.pop("nvme_path", None))
        elif device == "cpu" and name == "offload_optimizer":
            rest.setdefault("zero_force_ds_cpu_optimizer", True)
        if part or device != "none":
            zero[name] = part
    return zero


def _batch(rest: dict[str, Any], draft: Imported) -> dict[str, Any]:
    """Import the batch sizes. Values that DeepSpeed must compute are kept; "auto" is distui's default."""
    sizes = {name: rest.pop(name) for name in deepspeed.BATCH if name in rest}
    sizes = {name: value for name, value in sizes.items() if value != "auto"}
    if "train_batch_size" in sizes:
        return sizes
    draft.put("batch.micro", whole(sizes.get("train_micro_batch_size_per_gpu")))
    draft.put("batch.accumulation", whole(sizes.get("gradient_accumulation_steps")))
    return {}


def _deepspeed_precision(rest: dict[str, Any], draft: Imported) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    param = "fp32"
    for name in ("bf16", "fp16"):
        table = table_of(rest, name)
        rest.pop(name, None)
        enabled = table.get("enabled")
        if truth(enabled) and not isinstance(enabled, str):
            param = name
            del table["enabled"]
        elif enabled is False and len(table) == 1:
            table = {}
        kept[name] = table
    draft.put("precision.param", param)
    reduce = rest.get("communication_data_type")
    if reduce in get_args(model.Dtype):
        del rest["communication_data_type"]
    draft.put("precision.reduce", reduce if reduce in get_args(model.Dtype) else param)
    return {name: table for name, table in kept.items() if table}


NOT_KEPT = ("run", "name", "secrets", "envs", "num_nodes", "service", "pool")
"""Keys of a task that are no part of a preset, or that become fields."""


def from_skypilot(document: Mapping[str, Any], read: Callable[[str], bytes | None]) -> Imported:
    """Import a task, and the DeepSpeed configuration that its `run:` names. Losses are noted. Raises PresetError."""
    run = str(document.get("run") or "")
    draft = _strategy_of_task(run, read)
    draft.put("topology.nnodes", whole(document.get("num_nodes")) or 1)
    _variables_of_task(document, draft)
    if run:
        draft.notes.append(
            "Its run: is left out: launch with `distui launch NAME --on sky -- SCRIPT`; `--task FILE` runs the task as "
            "it is."
        )
    draft.keep("sky", {key: value for key, value in document.items() if key not in NOT_KEPT})
    return draft


def _variables_of_task(document: Mapping[str, Any], draft: Imported) -> None:
    """Import the variables of a task without its secrets."""
    envs, secrets = table_of(document, "envs"), document.get("secrets")
    left_out = [str(name) for name in secrets] if isinstance(secrets, Mapping | list) else []
    for name in [*left_out, *filter(is_secret, envs)]:
        draft.notes.append(f"{name} is left out: a preset is not a place for a secret; pass it with --env.")
    for name, value in envs.items():
        if value is not None and not is_secret(name):
            draft.put(f"{nccl.preset_table(name, str(value))}.{name}", model.variable_text(value))


def _strategy_of_task(run: str, read: Callable[[str], bytes | None]) -> Imported:
    """Return the strategy of the first JSON file that the commands name, or ddp with a note. Raises PresetError."""
    named = next((file.path for file in named_files(run) if file.path.endswith(".json")), "")
    config = deepspeed.parsed(read(named)) if named else None
    if config is not None:
        draft = from_deepspeed(config, named)
        draft.notes.append(f"Its strategy is that of {named}, which its run: names.")
        return draft
    draft = Imported()
    draft.put("strategy.kind", "ddp")
    if run:
        missing = f" ({named} is not here)" if named else ""
        draft.notes.append(f"Its strategy is unknown here{missing}: set [strategy] kind.")
    return draft
