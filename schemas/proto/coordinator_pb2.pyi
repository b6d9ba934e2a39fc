from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InstanceReport(_message.Message):
    __slots__ = ("schema_version", "instance", "run_id", "state", "version", "running", "waiting", "received", "kv_cache_usage", "max_num_seqs", "pid", "tokens_total", "kv_capacity_tokens", "kv_tokens", "throughput", "requests", "prompt_tokens", "generated_tokens", "ttft_s", "itl_s", "cost", "engine_waiting", "record_every_s", "migration", "pull_s")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    ITL_S_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_WAITING_FIELD_NUMBER: _ClassVar[int]
    RECORD_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    instance: str
    run_id: str
    state: str
    version: int
    running: int
    waiting: int
    received: int
    kv_cache_usage: float
    max_num_seqs: int
    pid: int
    tokens_total: int
    kv_capacity_tokens: int
    kv_tokens: int
    throughput: float
    requests: _containers.RepeatedScalarFieldContainer[str]
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    generated_tokens: _containers.RepeatedScalarFieldContainer[int]
    ttft_s: float
    itl_s: float
    cost: CostModel
    engine_waiting: int
    record_every_s: float
    migration: Migration
    pull_s: float
    def __init__(self, schema_version: _Optional[int] = ..., instance: _Optional[str] = ..., run_id: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., received: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., max_num_seqs: _Optional[int] = ..., pid: _Optional[int] = ..., tokens_total: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., throughput: _Optional[float] = ..., requests: _Optional[_Iterable[str]] = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., generated_tokens: _Optional[_Iterable[int]] = ..., ttft_s: _Optional[float] = ..., itl_s: _Optional[float] = ..., cost: _Optional[_Union[CostModel, _Mapping]] = ..., engine_waiting: _Optional[int] = ..., record_every_s: _Optional[float] = ..., migration: _Optional[_Union[Migration, _Mapping]] = ..., pull_s: _Optional[float] = ...) -> None: ...

class CostModel(_message.Message):
    __slots__ = ("schema_version", "other_threshold", "other_latency_b", "other_latency_k", "attn_latency_b", "attn_latency_k")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    OTHER_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    OTHER_LATENCY_B_FIELD_NUMBER: _ClassVar[int]
    OTHER_LATENCY_K_FIELD_NUMBER: _ClassVar[int]
    ATTN_LATENCY_B_FIELD_NUMBER: _ClassVar[int]
    ATTN_LATENCY_K_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    other_threshold: float
    other_latency_b: float
    other_latency_k: float
    attn_latency_b: float
    attn_latency_k: float
    def __init__(self, schema_version: _Optional[int] = ..., other_threshold: _Optional[float] = ..., other_latency_b: _Optional[float] = ..., other_latency_k: _Optional[float] = ..., attn_latency_b: _Optional[float] = ..., attn_latency_k: _Optional[float] = ...) -> None: ...

class HostCommand(_message.Message):
    __slots__ = ("schema_version", "run_id", "kind", "requests", "reason")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    run_id: str
    kind: str
    requests: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, schema_version: _Optional[int] = ..., run_id: _Optional[str] = ..., kind: _Optional[str] = ..., requests: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Migration(_message.Message):
    __slots__ = ("enable", "indicator", "threshold", "stop_indicator", "stop_threshold")
    ENABLE_FIELD_NUMBER: _ClassVar[int]
    INDICATOR_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    STOP_INDICATOR_FIELD_NUMBER: _ClassVar[int]
    STOP_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    enable: bool
    indicator: str
    threshold: float
    stop_indicator: str
    stop_threshold: float
    def __init__(self, enable: bool = ..., indicator: _Optional[str] = ..., threshold: _Optional[float] = ..., stop_indicator: _Optional[str] = ..., stop_threshold: _Optional[float] = ...) -> None: ...

class SyncStrategy(_message.Message):
    __slots__ = ("indicator", "threshold", "check_req_before_sync", "max_wait_s", "seamless_train_version")
    INDICATOR_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CHECK_REQ_BEFORE_SYNC_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SEAMLESS_TRAIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    indicator: str
    threshold: float
    check_req_before_sync: bool
    max_wait_s: float
    seamless_train_version: int
    def __init__(self, indicator: _Optional[str] = ..., threshold: _Optional[float] = ..., check_req_before_sync: bool = ..., max_wait_s: _Optional[float] = ..., seamless_train_version: _Optional[int] = ...) -> None: ...

class SyncAndMigStrategy(_message.Message):
    __slots__ = ("method", "sync", "mig")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    method: str
    sync: SyncStrategy
    mig: Migration
    def __init__(self, method: _Optional[str] = ..., sync: _Optional[_Union[SyncStrategy, _Mapping]] = ..., mig: _Optional[_Union[Migration, _Mapping]] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("schema_version", "run_id", "instance", "version", "strategy", "mode", "wait_s")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    run_id: str
    instance: str
    version: int
    strategy: SyncAndMigStrategy
    mode: str
    wait_s: float
    def __init__(self, schema_version: _Optional[int] = ..., run_id: _Optional[str] = ..., instance: _Optional[str] = ..., version: _Optional[int] = ..., strategy: _Optional[_Union[SyncAndMigStrategy, _Mapping]] = ..., mode: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class SyncAnswer(_message.Message):
    __slots__ = ("schema_version", "due", "reason")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    due: bool
    reason: str
    def __init__(self, schema_version: _Optional[int] = ..., due: bool = ..., reason: _Optional[str] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("schema_version", "run_id", "group_id", "indices", "version_tag", "wait_s", "strategy", "prefer", "tokens", "sampled", "blocks")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VERSION_TAG_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    run_id: str
    group_id: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    version_tag: int
    wait_s: float
    strategy: str
    prefer: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    sampled: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, schema_version: _Optional[int] = ..., run_id: _Optional[str] = ..., group_id: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., version_tag: _Optional[int] = ..., wait_s: _Optional[float] = ..., strategy: _Optional[str] = ..., prefer: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., sampled: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("schema_version", "index", "instance", "version")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    index: int
    instance: str
    version: int
    def __init__(self, schema_version: _Optional[int] = ..., index: _Optional[int] = ..., instance: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RouteResult(_message.Message):
    __slots__ = ("schema_version", "placements", "reason")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    reason: str
    def __init__(self, schema_version: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class DispatchPlanRequest(_message.Message):
    __slots__ = ("schema_version", "run_id", "trajectories_per_group", "admits", "strategy")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ADMITS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    run_id: str
    trajectories_per_group: int
    admits: _containers.RepeatedCompositeFieldContainer[DispatchRoom]
    strategy: str
    def __init__(self, schema_version: _Optional[int] = ..., run_id: _Optional[str] = ..., trajectories_per_group: _Optional[int] = ..., admits: _Optional[_Iterable[_Union[DispatchRoom, _Mapping]]] = ..., strategy: _Optional[str] = ...) -> None: ...

class DispatchRoom(_message.Message):
    __slots__ = ("schema_version", "version", "groups")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    version: int
    groups: int
    def __init__(self, schema_version: _Optional[int] = ..., version: _Optional[int] = ..., groups: _Optional[int] = ...) -> None: ...

class DispatchPlan(_message.Message):
    __slots__ = ("schema_version", "rooms", "reason")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOMS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    rooms: _containers.RepeatedCompositeFieldContainer[DispatchRoom]
    reason: str
    def __init__(self, schema_version: _Optional[int] = ..., rooms: _Optional[_Iterable[_Union[DispatchRoom, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class FleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetInstance(_message.Message):
    __slots__ = ("schema_version", "report", "load", "age_s")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    report: InstanceReport
    load: int
    age_s: float
    def __init__(self, schema_version: _Optional[int] = ..., report: _Optional[_Union[InstanceReport, _Mapping]] = ..., load: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class FleetSnapshot(_message.Message):
    __slots__ = ("schema_version", "instances")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    instances: _containers.RepeatedCompositeFieldContainer[FleetInstance]
    def __init__(self, schema_version: _Optional[int] = ..., instances: _Optional[_Iterable[_Union[FleetInstance, _Mapping]]] = ...) -> None: ...
