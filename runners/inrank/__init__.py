"""Code that the training environment's Python executes. Standard library and torch only; Python 3.9 and newer.

That Python need not have distui installed: `launch.py` and the hook load this folder as a package by its path. Two kinds
of processes share it:

    the runner, 1 per node    launch.py is its entry, runner.py its main; elastic, worker_group and rank_processes own
                              the ranks; env_changes, restart_policy and failure_causes (from known_causes) decide;
                              rendezvous, coordinator, attempt_round, secure_channel and relay connect the nodes
    each rank                 site/ is its entry, hook.py its main; rank_pulse (with collectives), optimizer_steps,
                              training_signals, checkpoint_saves (with checkpoint_paths), stack_dumps, memory_dump
                              and end_notes report;
                              rank_changes, debug_levels and rank_profile act;
                              the user's script calls parallelize/, adopt/ acts at its DDP call
    both                      control (sockets), reporter (runner.jsonl), own_folders (where sockets may be), tracebacks,
                              presets_modules (modules of presets/ that the runner shares)

parameter_count and torch_check are separate programs: each answers one question and exits.
"""
