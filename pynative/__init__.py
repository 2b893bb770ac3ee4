"""The execution of a plan on MindSpore's dynamic graph (PyNative); of `mapping`, `parallel_core` and `pynative` the
only package that imports MindSpore.

Ambient state
-------------
The main state of the process that code of this package reads without being given it:

    where                          what                                         set by
    parallel_state                 topology, groups, connection to other ranks, set_parallel_context (or Megatron's
                                   the configuration                            initialize_model_parallel)
    step_position                  iteration, micro-batch, chunk                the training loop and the runner
    step_figures                   what cells report of a training step, and    PipelineStep.run, within a step;
                                   the seed of auxiliary losses                 Megatron's set_loss_scale
    moe.router_replay              the record of which experts routers choose   a generation that is asked for one
    key_value_cache                the cache of the generation under way        generating, within a block
    tensor_parallel.random         seed, Megatron's named random streams        set_seed; rng_fork within a block
    tensor_parallel.recompute      the part that is run, first or again         checkpoint, within it
    kernels                        the operators in use                         set_parallel_context; on_host and
                                                                                watched within a block
    kernels.host.threads           threads of the host's operators              set_parallel_context
    tape.autograd                  the queue of deferred weight gradients,      deferred_weight_gradients,
                                   and whether MindSpore's tape records         recording: both within a block
    tape.layer_events              runs of cells in the forward under way       LayerEvents.forward, within a block
    sys.excepthook                 the end of a job whose rank failed           set_parallel_context, not at a prompt
    malloc, numpy's BLAS           kept memory; one thread, the fastest core    set_parallel_context
    numpy.random                   for the script's own use                     set_seed
    a thread                       waits for the end of msrun, which started    startup.lifetime, here
                                   this process
    another                        answers roll calls (collectives.roll_call)   set_parallel_context
    SIGUSR2                        asks ranks (HCCL: this one) where they stand set_parallel_context

Two computations that take turns (tape.turns) have position, random streams, part, record of experts, runs of cells and
tape each for itself: these are `Local`s (local.py), and the tape's switches.

Caches (`functools.cache`, the ledger's call sites) are not listed: what they return does not depend on
them. `mapping.arguments` keeps the flags for Megatron's `get_args`; nothing here reads it.
"""

import os

if "MS_ROLE" in os.environ:  # set by msrun alone; before all imports, which take longer than msrun may live
    from pynative.startup.lifetime import watch

    watch()
from parallel_core.system.environment import unfit_versions

if unfit := "\n".join(map(str, unfit_versions())):
    raise ImportError(unfit)
