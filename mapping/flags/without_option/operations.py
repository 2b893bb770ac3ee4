"""Flags that are ignored or refused: operations, such as debugging, fault tolerance, jobs."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Operations: debugging, fault tolerance, jobs",
    refused(
        "this debugging aid is not there; leave it out",
        """
        --config-logger-dir=str: --dump-param-to-param-group-map=str --save-params-interval=int
        --save-activations-interval=int --save-wgrads-interval=int --save-dgrads-interval=int
        --run-workload-inspector-server --npu-datadump --transformer-timers
        """,
    ),
    refused("no iteration is skipped by its number; leave it out", "--iterations-to-skip=int+:[]"),
    refused(
        "results that --rerun-mode finds wrong are named in the log, not in a file of their own; leave it out",
        "--result-rejected-tracker-filename=str",
    ),
    refused(
        "a running job tests no hardware, keeps its number of ranks and no spare copies of states, and submits no "
        "successor; leave it out, and start the job again after a failure",
        """
        --gpu-sniff-test-interval=int --adlr-autoresume --adlr-autoresume-interval=int:1000
        --enable-elastic-training --enable-optimizer-state-local-copy
        """,
    ),
    ignored(
        "nothing is repaired while a job runs: when a rank is lost the job ends, says which, and goes on from its last "
        "checkpoint when it is started again",
        """
        --inprocess-restart
        --inprocess-max-iterations=int --inprocess-monitor-thread-interval=float:1.0
        --inprocess-monitor-process-interval=float:1.0 --inprocess-progress-watchdog-interval=float:1.0
        --inprocess-heartbeat-interval=float:30 --inprocess-soft-timeout=float:60 --inprocess-hard-timeout=float:90
        --inprocess-heartbeat-timeout=float:60 --inprocess-barrier-timeout=float:120
        --inprocess-completion-timeout=float:120 --inprocess-last-call-wait=float:1
        --inprocess-termination-grace-time=float:1 --inprocess-granularity=str{node,rank}:node
        --inprocess-active-world-size=int:1 --inprocess-empty-cuda-cache --enable-ft-package --calc-ft-timeouts
        --ft-num-warmup-iters=int:5 --enable-high-availability --enable-hbmfault-repair --enable-worker-reboot
        """,
    ),
    refused(
        "the signals that save and end a run are SIGTERM and SIGUSR1; use --exit-signal-handler",
        """
        --exit-signal=str:SIGTERM --exit-signal-handler-for-dataloader --exit-signal-handler-for-training
        """,
    ),
    refused(
        "checkpoints are the persistent ones of --save alone; leave it out",
        """
        --non-persistent-save-interval=int --non-persistent-ckpt-type=str{global,local,in_memory}
        --non-persistent-global-ckpt-dir=str --non-persistent-local-ckpt-dir=str
        --non-persistent-local-ckpt-algo=str{fully_parallel,atomic}:fully_parallel --replication --replication-jump=int
        --replication-factor=int:2
        """,
    ),
    refused("process groups are never faked; leave it out", "--fake-process-group"),
    ignored(
        "no wrong results are injected: the run goes on as if this flag were not given",
        """
        --error-injection-rate=int:0
        --error-injection-type=str{correct_result,transient_error,persistent_error}:transient_error
        """,
    ),
    refused(
        "faults are injected by the tests only; leave it out",
        """
        --fault-injector-ranks=str --fault-injector-num-ranks=int --fault-injector-fault-types=str
        --fault-injector-fault-probabilities=str --fault-injector-fault-delay=float
        --fault-injector-delay-start-iteration=int --fault-injector-mtti-seconds=float
        --fault-injector-offset-seconds=float --fault-injector-seed=int
        """,
    ),
    refused("this file of flags is not read; give its flags by name", "--additional-config=str"),
)
