"""`actor_rollout_ref.rollout.agent.*`: agent loops."""

from ..convert import none_at
from ..row import Row, Switch, not_needed, not_supported, part, renamed

HERE = "actor_rollout_ref.rollout.agent."
SHAPED = ("gamma", "reward_bonus_coeff")

ROWS: tuple[Row, ...] = (
    not_supported(
        f"{HERE}default_agent_loop",
        "a loop of your own class; psrl.agentic_rl.agent_loop names ours",
        "generate_only_agent",
        "single_turn_agent",
        "tool_agent",
    ),
    not_supported(f"{HERE}agent_loop_config_path", "loops of your own classes; psrl.agentic_rl.agent_loop names ours"),
    *not_needed(
        "trajectories are workflows, on any orchestrator",
        f"{HERE}num_workers",
        f"{HERE}node_ips",
        f"{HERE}route_strategy",
    ),
    renamed(f"{HERE}overlong_filtering", "algorithm.mask_truncated"),
    renamed(f"{HERE}trajectory_timeout", "psrl.agentic_rl.trajectory_timeout_s"),
    renamed(f"{HERE}retry_limit", "psrl.agentic_rl.retry_limit"),
    *not_needed(
        "a generation that fails continues on another instance; a failed group is replaced", f"{HERE}raise_on_error"
    ),
    *(not_supported(f"{HERE}{key}", "rewards of single steps", 0) for key in SHAPED),
    not_supported(f"{HERE}traj_reward_mode", "rewards of single steps", "traj"),
    not_supported(f"{HERE}env.name", "environments of PSRL's registry; psrl.agentic_rl.environment takes a class"),
    renamed(f"{HERE}env.step_timeout", "psrl.agentic_rl.step_timeout_s", convert=none_at(None, why="it has a limit")),
    *part(Switch(f"{HERE}env.name"), "environments of PSRL's registry", f"{HERE}env.*"),
    not_supported(f"{HERE}data.name", "agent data of a class of its own"),
    not_supported(f"{HERE}custom_async_server.path", "an engine server of your own"),
    *part(Switch(f"{HERE}custom_async_server.path"), "an engine server of your own", f"{HERE}custom_async_server.name"),
    *part(Switch(f"{HERE}env.name"), "sandboxes for environments", f"{HERE}sandbox.*"),
)
