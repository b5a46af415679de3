"""`--adopt`: apply the preset at the script's own DistributedDataParallel call.

arming        reads the environment, and loads the rest right after torch
call          changes torch: the constructor, optimizer steps, the end of the process group
layers        which modules are sharded together
zero1         each rank updates a part of the parameters
fsdp2         fully_shard shards the model: sharding calls it, states makes state dicts whole, and uses refuses every
              other use of a parameter
meeting       checks that all ranks do the same
peers         lets one rank read a state that is divided over all of them
optimizers    which of torch's optimizers update elements or parameters independently
outputs       the tensors that a forward pass returns
refusals      the sentence for everything that the script may not do
report        the applied changes, and where in the script
"""
