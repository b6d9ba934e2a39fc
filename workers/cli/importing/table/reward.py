"""`reward.*`, and what veRL had before: `custom_reward_function.*`, `reward_model.*`, `reward_manager.*`."""

from ..convert import arguments, function_in_file, overlong
from ..row import Row, Switch, not_needed, not_supported, part, renamed

MODEL = "scoring by a reward model"
MANAGER = "a reward manager: what it adds to a score belongs into the reward function"
LENGTH = "the penalty for long answers, beside the reward function"
MANAGERS = ("naive", "dapo")
HEEDED = "it calls the reward function; dapo's penalty for long answers has a key of its own"
PATH = "`path/to/file.py:function`; veRL's signature is called as veRL calls it"


def function(path: str, name: str) -> tuple[Row, ...]:
    """A file in one key, the function in it in another."""
    shown = name.rpartition(".")[2]
    return (
        renamed(path, "reward.function", why=PATH, convert=function_in_file(shown)),
        *not_needed(f"it is part of {path}", name),
    )


def penalty(prefix: str) -> tuple[Row, ...]:
    """One switch, and numbers that count with it."""
    longest = f"{prefix.rpartition('.')[0]}.max_resp_len"
    return (
        renamed(f"{prefix}.enable", "reward.functions", why=LENGTH, convert=overlong(prefix, longest)),
        *not_needed(f"it is part of {prefix}.enable", f"{prefix}.*", longest),
    )


ROWS = (
    *function("custom_reward_function.path", "custom_reward_function.name"),
    *function("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
    *function("reward.managers.*.reward_fn.*.path", "reward.managers.*.reward_fn.*.name"),
    *(
        renamed(key, "reward.kwargs", why="one mapping of all of them", convert=arguments)
        for key in (
            "custom_reward_function.reward_kwargs.*",
            "reward.custom_reward_function.reward_kwargs.*",
            "reward.managers.*.reward_fn.*.reward_kwargs.*",
        )
    ),
    *(
        row
        for prefix in (
            "custom_reward_function.overlong_buffer",
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
            "reward.reward_kwargs.overlong_buffer_cfg",
            "reward.managers.dapo.reward_kwargs.overlong_buffer_cfg",
        )
        for row in penalty(prefix)
    ),
    *not_needed(
        "rewards run while other groups are generated",
        "reward.launch_reward_fn_async",
        "reward_model.launch_reward_fn_async",
    ),
    not_supported("reward.reward_normalization", "normalising rewards before the advantages"),
    renamed("reward.reward_loop_worker.max_concurrency_per_worker", "reward.max_concurrency"),
    *not_needed(
        "rewards run in the cpu workers of the stack",
        "reward.reward_loop_worker.*",
        "reward.num_workers",
        "reward_model.num_workers",
    ),
    not_supported("reward.active_managers", MANAGER, *MANAGERS, off_means=HEEDED),
    *part(Switch("reward.active_managers", off=MANAGERS), MANAGER, "reward.managers.*"),
    not_supported("reward.reward_manager.name", MANAGER, *MANAGERS, off_means=HEEDED),
    *part(
        Switch("reward.reward_manager.name", off=MANAGERS),
        MANAGER,
        "reward.reward_manager.*",
        "reward.reward_kwargs.*",
    ),
    not_supported("reward_model.reward_manager", MANAGER, *MANAGERS, off_means=HEEDED),
    *part(Switch("reward_model.reward_manager", off=MANAGERS), MANAGER, "reward_model.reward_kwargs.*"),
    *part(
        Switch("reward_manager.source", off=("register",)),
        MANAGER,
        "reward_manager.*",
        "reward_model.reward_loop_source",
        "reward_model.reward_loop_module_path",
        "reward_model.reward_loop_class_name",
    ),
    not_supported("reward.reward_model.enable", MODEL, False),
    *part(Switch("reward.reward_model.enable", off=(False,)), MODEL, "reward.reward_model.*"),
    not_supported("reward_model.enable", MODEL, False),
    *part(Switch("reward_model.sandbox_fusion.url"), "a sandbox that runs code", "reward_model.sandbox_fusion.*"),
    *part(Switch("reward_model.enable", off=(False,)), MODEL, "reward_model.*"),
    *part(Switch("reward.sandbox_fusion.url"), "a sandbox that runs code", "reward.sandbox_fusion.*"),
    *part(Switch("sandbox_fusion.url"), "a sandbox that runs code", "sandbox_fusion.*"),
)
