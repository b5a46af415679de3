"""What a script does that --adopt cannot follow → the sentence that stops the run. docs/adopt.md lists them."""

from __future__ import annotations

from .report import AdoptionError, where

_USES = (
    "under fsdp2 a script may use the model's parameters in passes, optimizer steps, clip_grad_norm_() and state_dict() "
    "only; take zero1, or shard the model in the script with parallelize()"
)
_OUTSIDE = "DistributedDataParallel averages no gradients of that; call what it returned, or take ddp"
_PLACED = "fully_shard puts other objects in their place: make it after the call, or take zero1"
REFUSALS = {
    # every strategy
    "step before the call": "the script makes its first optimizer step at {where}, and has not called "
    "DistributedDataParallel before, where --adopt applies {strategy}: leave --adopt out",
    "second communication hook": "the script registers a communication hook of its own at {where}, and {ours} needs "
    "one, too: {otherwise}",
    # zero1 and fsdp2
    "another optimizer": "{strategy} cannot be applied to {kind}, which steps at {where}: it takes {names} of torch; "
    "take ddp",
    "closure": "{strategy} cannot be applied at {where}: the script gives step() a closure, which computes gradients "
    "during the step; take ddp",
    "join": "{strategy} has no join(), which the script calls at {where} for uneven inputs; take ddp",
    "no store": "the ranks have no store at {address} (MASTER_ADDR, MASTER_PORT), which --adopt needs: have the "
    "script call init_process_group() without an init_method",
    "ended before state_dict": "a rank has ended, and a part of the state that state_dict() needs was there",
    "another version": "the ranks differ in their optimizer steps, or one of them has ended",
    "other rank ended": "rank {rank} is at its {what} at {where}, and another rank has ended or does not come: {why}",
    "other operation": "rank {other} is at its {theirs}, and rank {rank} at its {what} at {where}: {why}",
    # zero1
    "group of some ranks": "zero1 cannot be applied at {where}: the script gives DistributedDataParallel a process "
    "group of some ranks only; take ddp",
    "hook around steps": "zero1 cannot be applied at {where}: the script registers a hook around optimizer steps, "
    "which would see a part of the gradients and parameters; take ddp",
    "ranks differ": "zero1 cannot be applied at {where}: {what} differ between the ranks, {cause}; take ddp",
    "dropped optimizer": "its script has dropped that optimizer",
    # fsdp2, at the call
    "own class": "fsdp2 cannot be applied at {where}: {kind} is a class of the script's own on "
    "DistributedDataParallel; take zero1 or ddp",
    "unsuited model": "fsdp2 cannot be applied at {where} to {what}; take zero1 or ddp",
    "fully_shard": "fsdp2 cannot be applied at {where}: fully_shard refuses the model ({error}); take zero1",
    "kept parameters": "fsdp2 cannot be applied at {where}: the script keeps the model's parameters, or their ids, in "
    "a {container}, and " + _PLACED,
    # fsdp2, later
    "earlier parameter": "{where} uses a parameter that was taken from the model before DistributedDataParallel was "
    "called, and fsdp2 has put another object in its place: take it from the model after that call, or take zero1",
    "use of a shard": "{where} calls {name} on a parameter or gradient that is sharded: " + _USES,
    "part of the model": "{where} calls a part of the model: " + _OUTSIDE,
    "model.module": "{where} calls model.module: " + _OUTSIDE,
    "another parameter": "{where} makes a pass with another parameter as {name} of {kind} than at the call of "
    "DistributedDataParallel, as after pruning, tying or in functional_call(); take zero1",
    "changed parameter": "the pass at {where} changes {name} of {kind}, and fully_shard drops that: make it a buffer, "
    "or take zero1",
    "hidden tensors": "{kind} returns a {hidden} in the pass at {where}, in which fully_shard does not see the "
    "tensors: return tensors, tuples, lists or dicts, or take zero1",
    "create_graph": "{where} asks for gradients of gradients (create_graph), which fully_shard does not keep; take "
    "zero1",
    "second backward": "{where} makes a second backward pass after one forward pass, of which DistributedDataParallel "
    "averages no gradients: add the losses and call backward() once",
    "step after no_sync": "fsdp2 cannot be applied at {where}: the last pass was in no_sync(), and its gradients were "
    "not averaged; take ddp",
    "static_graph": "fsdp2 cannot be applied at {where}: a parameter has no gradient, and static_graph=True lets "
    "DistributedDataParallel make a zero of that; take ddp",
    "other gradients": "fsdp2 cannot be applied at {where}: ranks have gradients of other parameters; take ddp",
    "communication hook": "fsdp2 takes no communication hook, which the script registers at {where}; take ddp",
    "copy": "{where} copies a model that fsdp2 has sharded: copy it before DistributedDataParallel is called, or take "
    "zero1",
    "pickle": "{where} saves, or sends, a model that fsdp2 has sharded: have it save the state_dict(), or take zero1",
}


def refusal(what: str, /, **words: object) -> AdoptionError:
    """Return the error with the sentence for what the script does at its current line."""
    return AdoptionError(REFUSALS[what].format(where=where(), **words))
