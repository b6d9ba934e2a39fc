"""Every environment variable that this project reads, in one table: `psrl config docs` prints it, and a test compares
it with the code."""

from dataclasses import dataclass

HOME_VARIABLE = "PSRL_HOME"
TEMPORAL_ADDRESS = "PSRL_TEMPORAL_ADDRESS"
TEMPORAL_NAMESPACE = "PSRL_TEMPORAL_NAMESPACE"
TEMPORAL_UI = "PSRL_TEMPORAL_UI"
POSTGRES_URL = "PSRL_POSTGRES_URL"
COORDINATOR_ADDRESS = "PSRL_COORDINATOR_ADDRESS"
COORDINATOR_METRICS = "PSRL_COORDINATOR_METRICS"
GATEWAY_ADDRESS = "PSRL_GATEWAY_ADDRESS"
INSTANCES = "PSRL_INSTANCES"
WEIGHTS_DIR = "PSRL_WEIGHTS_DIR"
CHECKPOINTS_DIR = "PSRL_CHECKPOINTS_DIR"
STACK_ID = "PSRL_STACK_ID"
TEMPORAL_ID = "PSRL_TEMPORAL_ID"
STORE_ID = "PSRL_STORE_ID"
PART_VARIABLE = "PSRL_PART"
"""With the home it tells whose process it is: set in every process of a stack, inherited by what that starts."""
START_FAULT_VARIABLE = "PSRL_START_FAULT"
"""Path of a file, while an engine starts: its process writes there why it could not."""


@dataclass(frozen=True)
class Variable:
    name: str
    default: str
    """What holds when it is not set, for people."""
    meaning: str


STACK = (
    Variable(HOME_VARIABLE, "`.psrl` here", "The directory of the stack; the option `--home` wins."),
    Variable(TEMPORAL_ADDRESS, "required", "Temporal, `HOST:PORT`."),
    Variable(TEMPORAL_NAMESPACE, "`default`", "Its namespace."),
    Variable(TEMPORAL_UI, "not known", "Address of its web UI, for links."),
    Variable(POSTGRES_URL, "required", "The store, `postgresql://USER:PASSWORD@HOST:PORT/DB`."),
    Variable(COORDINATOR_ADDRESS, "required", "The coordinator, `HOST:PORT`; it listens there itself."),
    Variable(
        GATEWAY_ADDRESS, "no sessions", "The gateway, `HOST:PORT`; it listens there itself, copies with `--listen`."
    ),
    Variable(INSTANCES, "required", "How many rollout instances there are: `rollout-0` and so on."),
    Variable(WEIGHTS_DIR, "`weights` in the home", "Where the `file` transport keeps versions; every process sees it."),
    Variable(CHECKPOINTS_DIR, "`checkpoints` in the home", "Where the trainer keeps checkpoints."),
    Variable(STACK_ID, "not checked", "Any name of this stack's own: its coordinator answers no other stack."),
    Variable(
        TEMPORAL_ID,
        "not checked",
        "The id of the namespace (`temporal operator namespace describe`): a server on which it has another id is "
        "another stack's.",
    ),
    Variable(STORE_ID, "not checked", "The row of the table `store_identity`: another database is another stack's."),
)
"""They describe a stack whose parts are not started by `psrl up`, in containers for example. When one of the addresses
is set, all of them are read from here and none from `stack.json`."""

TASK_VARIABLE = "PSRL_TASK"
MODEL_VARIABLE = "PSRL_MODEL"

PROCESSES = (
    Variable(PART_VARIABLE, "set by `psrl up`", "Which part of the stack a process belongs to."),
    Variable(START_FAULT_VARIABLE, "set by the rollout host", "Where an engine's process says why it did not start."),
    Variable(COORDINATOR_METRICS, "no metrics", "Where the coordinator serves Prometheus metrics, `HOST:PORT`."),
    Variable(TASK_VARIABLE, "set for an agent", "Path of its task as JSON."),
    Variable(MODEL_VARIABLE, "set for an agent", "The model that it is to ask for."),
    Variable("OMP_NUM_THREADS", "`1`", "Threads of the trainer's and the engines' CPU work."),
    Variable("HF_HUB_OFFLINE", "`1`", "`0` lets models be downloaded."),
    Variable("VLLM_NO_USAGE_STATS", "`1`", "vLLM's own."),
    Variable("VLLM_ENABLE_V1_MULTIPROCESSING", "`0`", "vLLM's own."),
    Variable("VLLM_LOGGING_LEVEL", "`WARNING`", "vLLM's own."),
    Variable("VLLM_CPU_OMP_THREADS_BIND", "`nobind` without a GPU", "vLLM's own."),
    Variable("PYTHONUNBUFFERED", "`1`", "Logs are written line by line."),
    Variable("PYTHONPATH", "empty", "Searched for reward functions after the directory of `psrl up`."),
    Variable("TORCHDYNAMO_DISABLE", "`1` without a GPU", "`0` lets torch compile on a CPU."),
    Variable("TORCHINDUCTOR_CACHE_DIR", "in the temporary folder", "Where compiled kernels are kept between stacks."),
    Variable("CUBLAS_WORKSPACE_CONFIG", "`:4096:8`", "What CUDA needs for repeatable results."),
    Variable("GOGC", "`400`", "Heap growth in percent at which the embedded Temporal collects garbage."),
    Variable("GOMEMLIMIT", "`2GiB`", "Soft memory limit of the embedded Temporal."),
    Variable("RANK", "`0`", "The trainer's rank, from a launcher."),
    Variable("WORLD_SIZE", "`1`", "How many ranks the trainer has, from a launcher."),
)
