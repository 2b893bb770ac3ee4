"""Flags: profiling."""

from mapping.flags.flag import group, off, switch, value, values

FLAGS = group(
    "profiling",
    switch("--profile", "training_config.profile"),
    value("--profile-save-path", str, "./profile_dir", "training_config.profile_save_path"),
    value("--profile-step-start", int, 10, "training_config.profile_step_start"),
    value("--profile-step-end", int, 12, "training_config.profile_step_end"),
    value(
        "--profile-level",
        str,
        "level0",
        "training_config.profile_level",
        choices=("level_none", "level0", "level1", "level2"),
    ),
    switch("--profile-with-stack", "training_config.profile_with_stack"),
    switch("--profile-with-memory", "training_config.profile_memory", aliases=("--profile-memory",)),
    switch("--profile-data-simplification", "training_config.profile_data_simplification"),
    value("--profile-framework", str, None, "training_config.profile_framework", choices=("all", "time")),
    switch("--profile-communication", "training_config.profile_communication"),
    switch("--profile-parallel-strategy", "training_config.profile_parallel_strategy"),
    value("--profile-aicore-metrics", int, 0, "training_config.profile_aicore_metrics"),
    switch("--profile-l2-cache", "training_config.profile_l2_cache"),
    switch("--profile-hbm-ddr", "training_config.profile_hbm_ddr"),
    switch("--profile-pcie", "training_config.profile_pcie"),
    switch("--profile-data-process", "training_config.profile_data_process"),
    switch("--profile-offline-analyse", "training_config.profile_offline_analyse"),
    value("--profile-dynamic-profiler-config-path", str, None, "training_config.profile_dynamic_profiler_config_path"),
    off("--no-profile-op-time", "profile_op_time", "training_config.profile_op_time"),
    values("--profile-ranks", int, None, "training_config.profile_ranks"),
    switch("--profile-with-cpu", "training_config.profile_with_cpu"),
    switch("--profile-record-shapes", "training_config.profile_record_shapes"),
)
