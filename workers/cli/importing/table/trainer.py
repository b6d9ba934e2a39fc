"""`trainer.*`: length of the run, checkpoints, validation, loggers."""

from ..convert import at_least
from ..row import Switch, not_needed, not_supported, part, renamed, same

ROWS = (
    same("trainer.project_name"),
    same("trainer.total_epochs"),
    same("trainer.total_training_steps"),
    same("trainer.save_freq", "0 is -1", at_least(1, -1)),
    same("trainer.test_freq", "0 is -1", at_least(1, -1)),
    same("trainer.val_before_train"),
    renamed("trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep"),
    *not_needed("the run has its name from `psrl train --run NAME`", "trainer.experiment_name"),
    not_supported(
        "trainer.logger",
        "wandb and the like; `psrl report` has every number, and writes TensorBoard's files",
        "console",
        "tensorboard",
        "file",
        off_means="`psrl report` has every number, and writes TensorBoard's files",
    ),
    *not_needed(
        "answers are in the store: `psrl trajectory show`",
        "trainer.log_val_generations",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
    ),
    not_supported("trainer.nnodes", "a trainer on several nodes", 1),
    not_supported("trainer.n_gpus_per_node", "a trainer on several GPUs", 1),
    *not_needed("the trainer takes the GPU that it finds", "trainer.device"),
    *not_needed("`psrl resume` continues a run from its last checkpoint", "trainer.resume_mode"),
    not_supported("trainer.resume_from_path", "beginning with another run's optimizer; model.path takes its weights"),
    not_supported("trainer.val_only", "validation without training", False),
    *not_needed("there is no critic", "trainer.critic_warmup", "trainer.max_critic_ckpt_to_keep"),
    *not_needed("checkpoints are in the directory of the stack", "trainer.default_local_dir"),
    not_supported("trainer.default_hdfs_dir", "checkpoints in HDFS"),
    *not_needed("max_ckpt_to_keep says what is kept", "trainer.del_local_ckpt_after_load"),
    not_supported("trainer.checkpoint_callback_class", "code of your own after a checkpoint"),
    *not_needed("one process has the whole batch", "trainer.balance_batch"),
    *not_needed("a run that is cut off continues where it was", "trainer.esi_redundant_time"),
    *not_needed("there is no Ray", "trainer.ray_wait_register_center_timeout"),
    *not_needed("there is one trainer", "trainer.use_legacy_worker_impl", "trainer.use_v1"),
    *not_needed("it only observes", "trainer.enable_pmr_analysis"),
    not_supported(
        "trainer.v1.trainer_mode", "psrl.staleness says how far generation may run ahead: 0 is synchronous", "sync"
    ),
    *part(
        Switch("trainer.v1.trainer_mode", off=("sync",)),
        "psrl.staleness says how far generation may run ahead",
        "trainer.v1.*",
    ),
    not_supported("trainer.profile_steps", "profiles"),
    *part(
        Switch("trainer.profile_steps"),
        "profiles",
        "trainer.npu_profile.*",
        "trainer.controller_nsight_options.*",
        "trainer.worker_nsight_options.*",
    ),
)
