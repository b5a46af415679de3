"""`--adopt`: apply the preset at the script's own DistributedDataParallel call.

arming        reads the environment, and loads the rest right after torch
call          what changes in torch: the constructor, optimizer steps, the end of the process group
layers        which modules are checkpointed, compiled, or sharded together
zero1         each rank updates a part of the parameters
fsdp2         the model is sharded by fully_shard: sharding does that, states makes state dicts whole, and uses refuses
              every other use of a parameter
meeting       checks that all ranks do the same
peers         lets one rank read a state that is divided over all of them
optimizers    what torch's optimizers update on its own
outputs       the tensors that a forward pass returns
report        what was applied, and where in the script
"""
